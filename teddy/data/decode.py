"""Images of any kind → pixels of one size and one number of channels."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

Encoded = Path | bytes | np.ndarray
"""A file, a file's contents, or uint8 pixels [H, W] or [H, W, 3]."""

GREY_MODES = {"1", "L", "I;16", "I;16B", "I;16L", "I", "F", "LA", "La"}
ORIENTATION = 0x0112  # EXIF's tag; from 5 on, width and height change places
UNREADABLE = (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError)


@contextmanager
def quietly() -> Iterator[None]:
    """Without warnings: metadata that Pillow finds odd does not concern the pixels. Around many, since it is slow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def probe(item: Encoded) -> tuple[tuple[int, int], bool]:
    """(width, height) as displayed, and whether the image is grey, without decoding it."""
    with _open(item) as image:
        width, height = image.size
        turned = _has_exif(image) and image.getexif().get(ORIENTATION, 1) >= 5
        return ((height, width) if turned else (width, height)), image.mode in GREY_MODES


def decode(item: Encoded, size: int, channels: int) -> np.ndarray:
    """uint8 [size, size] or [size, size, 3]; raises what `UNREADABLE` lists if it is no whole image."""
    with _open(item) as image:
        image.draft(None, (2 * size, 2 * size))  # lets a large JPEG be decoded at a fraction of its size
        return fit(image, size, channels)


def prepare(image: Image.Image, size: int, channels: int) -> Tensor:
    """The picture as uint8 [channels, size, size], as `fit` makes it."""
    return to_tensor(fit(image, size, channels)[None].copy())[0]


def fit(image: Image.Image, size: int, channels: int) -> np.ndarray:
    """The picture as uint8 [size, size] or [size, size, 3]: turned as its EXIF data says, transparency over white, the
    shorter side scaled to `size`, the middle cut out."""
    upright = ImageOps.exif_transpose(image) if _has_exif(image) else image
    picture = _flat(upright, "L" if channels == 1 else "RGB")
    if picture.size != (size, size):
        picture = ImageOps.fit(picture, (size, size), Image.Resampling.BICUBIC)
    return np.asarray(picture)


def to_tensor(pictures: np.ndarray) -> Tensor:
    """uint8 [N, S, S] or [N, S, S, 3] → [N, C, S, S]."""
    pixels = torch.from_numpy(pictures)
    return pixels[:, None] if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2).contiguous()


def _has_exif(image: Image.Image) -> bool:
    return "exif" in image.info or image.format in {"TIFF", "MPO"}


def _open(item: Encoded) -> Image.Image:
    if isinstance(item, np.ndarray):
        return Image.fromarray(item)
    return Image.open(BytesIO(item) if isinstance(item, bytes) else item)


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
    return image if image.mode == mode else image.convert(mode)
