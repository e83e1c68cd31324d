"""Images as the rest of the program sees them: on the device, or streamed to it; the same rows in the same order.

Shapes: N images, C channels, S × S pixels.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from teddy.data.memory import brought

MOST_PIXELS = 1000 * 32**2  # of a batch that is only looked at: it is to take less memory than training does
CACHED_PIXELS = 125 * 32**2  # on a CPU: of more, what a layer leaves is out of the caches when the next one reads it


@dataclass(frozen=True)
class Images:
    """Pixels uint8 [N, C, S, S] with their labels int64 [N], all in memory: the resident form."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, rows: Tensor) -> "Images":
        return Images(self.pixels[rows], self.labels[rows])

    @property
    def size(self) -> int:
        """S."""
        return self.pixels.shape[-1]

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.pixels.device

    def to(self, device: torch.device) -> "Images":
        """The same on another device."""
        return Images(self.pixels.to(device), self.labels.to(device))

    def batches(self, parts: Iterable[Tensor]) -> Iterator["Images"]:
        """One batch for each of `parts`, which are row numbers."""
        return (self[brought(rows, self.pixels.device)] for rows in parts)

    def take(self, rows: Tensor) -> "Images":
        """Some of them."""
        return self[rows.to(self.pixels.device)]


class ImageSet(Protocol):
    """Images in either form. `labels` are always in memory."""

    @property
    def labels(self) -> Tensor:
        """int64 [N]."""

    @property
    def size(self) -> int:
        """S."""

    @property
    def device(self) -> torch.device:
        """Where batches are."""

    def __len__(self) -> int: ...

    def to(self, device: torch.device) -> "ImageSet":
        """The same set, its batches on `device`."""

    def batches(self, parts: Iterable[Tensor]) -> Iterator[Images]:
        """One batch for each of `parts`, which are row numbers."""

    def take(self, rows: Tensor) -> Images:
        """Some of them, in memory."""


def in_order(images: ImageSet, most: int) -> Iterator[Images]:
    """All images, batch by batch: `most` images in each, or fewer of large ones."""
    pixels = min(MOST_PIXELS, CACHED_PIXELS) if images.device.type == "cpu" else MOST_PIXELS
    return images.batches(torch.arange(len(images)).split(max(min(most, pixels // images.size**2), 1)))
