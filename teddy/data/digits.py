"""scikit-learn's handwritten digits: bundled, so that everything can be tried without a download."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

from teddy.data.split import split_rows

NATIVE_SIZE = 8
DEFAULT_SIZE = 16


def read_digits(
    _: str, image_size: int | None, test_share: float
) -> tuple[tuple[str, ...], Tensor, Tensor, Tensor, Tensor]:
    """Classes, training pixels and labels, test pixels and labels."""
    digits = load_digits()
    size = image_size or DEFAULT_SIZE
    grey = torch.from_numpy(digits.images).float()[:, None] / 16
    if size != NATIVE_SIZE:
        grey = F.interpolate(grey, size=(size, size), mode="bicubic", antialias=True).clamp(0, 1)
    pixels = (grey * 255).round().to(torch.uint8)
    labels = torch.from_numpy(digits.target).long()
    train, test = split_rows(labels, test_share)
    return tuple(str(name) for name in digits.target_names), pixels[train], labels[train], pixels[test], labels[test]
