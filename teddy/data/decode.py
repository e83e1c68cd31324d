"""Image files of any kind → pixels of one size and one number of channels."""

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

GREY_MODES = {"1", "L", "I;16", "I;16B", "I;16L", "I", "F", "LA", "La"}


def probe(path: Path) -> tuple[tuple[int, int], bool]:
    """(width, height) as displayed, and whether the image is grey, without decoding it."""
    with Image.open(path) as image:
        width, height = image.size
        turned = image.getexif().get(0x0112, 1) >= 5
        return ((height, width) if turned else (width, height)), image.mode in GREY_MODES


def decode(path: Path, size: int, channels: int) -> Tensor:
    """uint8 [channels, size, size]: turned as its EXIF data says, transparency over white, the shorter side scaled to
    `size`, the middle cut out. Raises what `UNREADABLE` lists if the file is no whole image."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # metadata that Pillow finds odd does not concern the pixels
        with Image.open(path) as image:
            picture = _flat(ImageOps.exif_transpose(image), "L" if channels == 1 else "RGB")
    if picture.size != (size, size):
        picture = ImageOps.fit(picture, (size, size), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(picture))
    return pixels[None] if channels == 1 else pixels.permute(2, 0, 1).contiguous()


UNREADABLE = (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError)


def _flat(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":  # deeper than eight bits, which convert() would cut off
        values = np.asarray(image, dtype=np.float64)
        values = values * 255 if image.mode == "F" and values.max() <= 1 else values
        values = values / 257 if values.max() > 255 else values
        return Image.fromarray(values.round().clip(0, 255).astype(np.uint8)).convert(mode)
    if image.mode in {"RGBA", "LA", "PA", "La", "RGBa"} or "transparency" in image.info:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert(mode)
    return image.convert(mode)
