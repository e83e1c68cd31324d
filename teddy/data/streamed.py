"""Images that are decoded when they are needed, by worker processes, ahead of their use.

The order comes from whoever asks, so that it depends on neither the number of workers nor their speed.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from teddy.data.decode import UNREADABLE, decode, quietly, to_tensor
from teddy.data.images import Images
from teddy.data.listing import Listing
from teddy.errors import TeddyError
from teddy.stopping import leave_signals_to_the_parent

BATCHES_AHEAD = 4  # of each worker
Decoded = tuple[Tensor, list[int]]
"""Pixels uint8 [B, C, S, S], black where an image is unreadable, and the rows that are."""


class StreamedImages:
    """A listing's images at one size; has the interface of `ImageSet`."""

    def __init__(
        self, listing: Listing, size: int, channels: int, *, workers: int, device: torch.device | None = None
    ) -> None:
        self.listing = listing
        self.size, self.channels, self.workers = size, channels, workers
        self.labels = torch.from_numpy(listing.labels)
        self.device = device or torch.device("cpu")
        self._parts = _Parts()
        self._loader: DataLoader[Decoded] | None = None

    def __len__(self) -> int:
        return len(self.listing)

    def to(self, device: torch.device) -> "StreamedImages":
        """The same set, its batches on `device`."""
        return StreamedImages(self.listing, self.size, self.channels, workers=self.workers, device=device)

    def take(self, rows: Tensor) -> Images:
        """Some of them, in memory on the CPU."""
        return Images(self._whole(_Decoding(self).__getitems__(rows.tolist())), self.labels[rows.cpu()])

    def batches(self, parts: Iterable[Tensor]) -> Iterator[Images]:
        """One batch for each of `parts`, which are row numbers."""
        parts = [rows.cpu() for rows in parts]
        for rows, decoded in zip(parts, self.decoded(parts), strict=True):
            pixels = self._whole(decoded).to(self.device, non_blocking=True)
            yield Images(pixels, self.labels[rows].to(self.device, non_blocking=True))

    def decoded(self, parts: list[Tensor]) -> Iterator[Decoded]:
        """The same as pixels in memory, with the rows that are unreadable instead of an error."""
        self._parts.rows = [rows.tolist() for rows in parts]
        if self._loader is None:
            self._loader = DataLoader(
                _Decoding(self),
                batch_sampler=self._parts,
                num_workers=self.workers,
                collate_fn=_as_it_is,  # type: ignore[arg-type]
                pin_memory=self.device.type == "cuda",
                prefetch_factor=BATCHES_AHEAD if self.workers else None,
                persistent_workers=self.workers > 0,
                worker_init_fn=leave_signals_to_the_parent if self.workers else None,
            )
        return iter(self._loader)

    def _whole(self, decoded: Decoded) -> Tensor:
        pixels, bad = decoded
        if bad:
            raise TeddyError(f"{self.listing.place(bad[0])}: was readable before and is no longer")
        return pixels


class _Parts:
    """The batches of the coming pass; the loader and its workers outlive a pass."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


class _Decoding(Dataset[Decoded]):
    def __init__(self, images: StreamedImages) -> None:
        self._listing, self._size, self._channels = images.listing, images.size, images.channels

    def __getitems__(self, rows: list[int]) -> Decoded:
        shape = (len(rows), self._size, self._size) + ((3,) if self._channels == 3 else ())
        pictures = np.zeros(shape, np.uint8)
        bad = []
        with quietly():
            for place, row in enumerate(rows):
                try:
                    pictures[place] = decode(self._listing.read(row), self._size, self._channels)
                except (*UNREADABLE, TeddyError):  # a worker's own error would arrive with its traceback
                    bad.append(row)
        return to_tensor(pictures), bad


def _as_it_is(decoded: Decoded) -> Decoded:
    return decoded
