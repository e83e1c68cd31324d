"""What a method is: where images start, and what they are driven towards. The engine does the stepping."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from teddy.config import MethodSettings
from teddy.data.source import Source
from teddy.synthesis.passes import Objective


@dataclass(frozen=True)
class Method:
    """`start` gives normalised images [N, C, H, W], class after class; without `objective` they stay as they are."""

    summary: str
    start: Callable[[MethodSettings, Source, int, torch.Generator], Tensor]
    objective: Callable[[MethodSettings], Objective] | None


def real_images(_: MethodSettings, source: Source, ipc: int, generator: torch.Generator) -> Tensor:
    """Real images drawn at random."""
    return source.preprocessing.normalise(source.draw(ipc, generator).pixels)


def noise_or_real(settings: MethodSettings, source: Source, ipc: int, generator: torch.Generator) -> Tensor:
    """As `initial` says; the noise is N(0, 1) in the normalised space, cut to valid pixels."""
    if settings.initial == "real":
        return real_images(settings, source, ipc, generator)
    shape = (len(source.classes) * ipc, source.channels, source.image_size, source.image_size)
    noise = torch.randn(shape, generator=generator)
    return noise.clamp(*source.preprocessing.bounds(noise))
