"""Pictures of the distilled images."""

import base64

import torch
from torch import Tensor
from torch.nn import functional as F

from teddy.distilled import encode_png

MOST_CLASSES = 100
MOST_IMAGES = 20
CELL = 48  # pixels that a shown image has at least


def strips(pixels: Tensor, labels: Tensor, classes: tuple[str, ...]) -> list[tuple[str, str]]:
    """(class name, data address of a PNG with its images side by side) for the first classes."""
    return [
        (name, data_address(encode_png(side_by_side(pixels[labels == label][:MOST_IMAGES]))))
        for label, name in enumerate(classes[:MOST_CLASSES])
    ]


def contact_sheet(pixels: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """uint8 [C, H, W]: a row per class, or one row of all where each class has one image."""
    rows = [side_by_side(pixels[labels == label][:MOST_IMAGES]) for label in range(min(num_classes, MOST_CLASSES))]
    if len(pixels) == num_classes <= MOST_IMAGES:
        return torch.cat(rows, dim=2)
    widest = max(row.shape[2] for row in rows)
    return torch.cat([F.pad(row, (0, widest - row.shape[2]), value=255) for row in rows], dim=1)


def side_by_side(pixels: Tensor) -> Tensor:
    """Images [N, C, H, W], enlarged by whole factors, in one row with a little space between."""
    factor = max(-(-CELL // pixels.shape[-1]), 1)
    large = pixels.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    framed = F.pad(large, (2, 2, 2, 2), value=255)
    return torch.cat(list(framed), dim=2) if len(framed) else framed.new_zeros(framed.shape[1], framed.shape[2], 0)


def data_address(png: bytes) -> str:
    """A PNG as an address that a page can hold in itself."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
