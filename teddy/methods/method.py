"""What a method is: where images start, and what they are driven towards. The engine does the stepping."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from teddy.config import MethodSettings
from teddy.data.source import Images, Source
from teddy.methods.typical import draw_typical
from teddy.pool.pool import Pool
from teddy.synthesis.passes import Objective


@dataclass(frozen=True)
class Method:
    """`start` gives normalised images [N, C, H, W], class after class; without `objective` they stay as they are."""

    summary: str
    start: Callable[[MethodSettings, Source, Pool, int, torch.Generator], Tensor]
    objective: Callable[[MethodSettings], Objective] | None


def random_images(settings: MethodSettings, source: Source, pool: Pool, ipc: int, generator: torch.Generator) -> Tensor:
    """Real images drawn at random, or mosaics of them."""
    del pool
    return _mosaics_of(source.draw(ipc * settings.tiles**2, generator), settings, source)


def _mosaics_of(drawn: Images, settings: MethodSettings, source: Source) -> Tensor:
    return mosaics(source.preprocessing.normalise(drawn.pixels), settings.tiles)


def mosaics(images: Tensor, tiles: int) -> Tensor:
    """Images [N · t², C, H, W] made smaller and laid side by side, t along each side: [N, C, H, W]."""
    if tiles == 1:
        return images
    channels, height, width = images.shape[1:]
    small = F.interpolate(images, size=(height // tiles, width // tiles), mode="bilinear", antialias=True)
    by_place = small.view(-1, tiles, tiles, channels, height // tiles, width // tiles)
    return by_place.permute(0, 3, 1, 4, 2, 5).reshape(-1, channels, height, width)


def initial_images(
    settings: MethodSettings, source: Source, pool: Pool, ipc: int, generator: torch.Generator
) -> Tensor:
    """As `initial` says; the noise is N(0, 1) in the normalised space, cut to valid pixels."""
    if settings.initial == "real":
        return random_images(settings, source, pool, ipc, generator)
    if settings.initial == "typical":
        strongest = pool.teachers[-1].network
        return _mosaics_of(draw_typical(source, strongest, ipc * settings.tiles**2, generator), settings, source)
    shape = (len(source.classes) * ipc, source.channels, source.image_size, source.image_size)
    noise = torch.randn(shape, generator=generator)
    return noise.clamp(*source.preprocessing.bounds(noise))
