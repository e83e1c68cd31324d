"""Between pixels (uint8, 0 to 255) and what networks are given (floats, normalised per channel).

Shapes: N images, C channels, H × W pixels.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Preprocessing:
    """Mean and deviation of each channel, on a scale where white is 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalise(self, pixels: Tensor) -> Tensor:
        """uint8 [N, C, H, W] → normalised floats."""
        return (pixels.float() / 255 - self._channel(self.mean, pixels)) / self._channel(self.std, pixels)

    def to_pixels(self, images: Tensor) -> Tensor:
        """Normalised floats → the nearest uint8."""
        scaled = images * self._channel(self.std, images) + self._channel(self.mean, images)
        return (scaled * 255).round().clamp(0, 255).to(torch.uint8)

    def bounds(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Black and white as normalised values [C, 1, 1] on the device of `images`."""
        mean, std = self._channel(self.mean, images), self._channel(self.std, images)
        return -mean / std, (1 - mean) / std

    @staticmethod
    def _channel(values: tuple[float, ...], like: Tensor) -> Tensor:
        return _by_channel(values, like.device)


@cache  # brought to the device once, not for each batch
@torch.inference_mode(False)  # whoever asks first, gradients may pass later
def _by_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)[:, None, None]


def histogram(pixels: Tensor) -> Tensor:
    """How often each level occurs in each channel [C, 256]: exact, and without a float copy of the data."""
    channels = range(pixels.shape[1])
    return torch.stack([torch.bincount(pixels[:, channel].flatten(), minlength=256) for channel in channels])


def from_histogram(counts: Tensor) -> Preprocessing:
    """Mean and deviation of what was counted; a channel without contrast counts as deviation 1."""
    share = counts.double() / counts.sum(1, keepdim=True)
    levels = torch.arange(256, device=counts.device).double() / 255
    mean = share @ levels
    variance = share @ levels**2 - mean**2
    std = torch.where(variance > 1e-8, variance.clamp(min=0).sqrt(), torch.ones_like(variance))
    return Preprocessing(tuple(round(m, 6) for m in mean.tolist()), tuple(round(s, 6) for s in std.tolist()))
