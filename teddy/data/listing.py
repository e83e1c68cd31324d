"""Where images lie: lists that read one image at a time and travel to worker processes.

A listing knows its images' places, labels and sizes; it holds no open file, so that pickling it is cheap and safe.
N images, H × W pixels.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np

from teddy.errors import TeddyError

Progress = Callable[[int], None]  # told how many images have been found so far


class Listing(Protocol):
    """Images in a fixed order, each with its label."""

    @property
    def labels(self) -> np.ndarray:
        """int64 [N]."""

    def __len__(self) -> int: ...

    def read(self, row: int) -> bytes | np.ndarray:
        """An encoded image file, or pixels uint8 [H, W] or [H, W, 3]."""

    def place(self, row: int) -> str:
        """What a person finds the image by."""

    def take(self, rows: np.ndarray, labels: np.ndarray | None = None) -> "Listing":
        """These rows in this order, with other labels where `labels` gives them."""

    def fingerprint(self) -> str:
        """Changes when the list of images, a label, a size or a modification time does."""

    def seen(self) -> dict[str, str]:
        """What each file looked like, by its name: for telling which one has changed."""


@dataclass(frozen=True)
class Catalogue:
    """A source, listed: class names in label order, training part, and test part where it has one of its own."""

    kind: str
    classes: tuple[str, ...]
    train: Listing
    test: Listing | None


@dataclass(frozen=True, eq=False)
class Names:
    """Many short byte strings in one: a million of Python's own would take several times the room."""

    blob: bytes
    bounds: np.ndarray  # int64 [N + 1]; string i is blob[bounds[i] : bounds[i + 1]]

    @classmethod
    def pack(cls, names: Iterable[bytes]) -> "Names":
        """The strings, one after the other."""
        parts = list(names)
        bounds = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=bounds[1:])
        return cls(b"".join(parts), bounds)

    @classmethod
    def join(cls, packed: Iterable["Names"]) -> "Names":
        """Several of them as one."""
        parts = list(packed)
        lengths = [np.diff(part.bounds) for part in parts]
        bounds = np.zeros(sum(map(len, parts)) + 1, np.int64)
        if lengths:
            np.cumsum(np.concatenate(lengths), out=bounds[1:])
        return cls(b"".join(part.blob for part in parts), bounds)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.blob[self.bounds[row] : self.bounds[row + 1]]

    def tolist(self) -> list[bytes]:
        """All of them."""
        bounds = self.bounds.tolist()
        return [self.blob[start:end] for start, end in pairwise(bounds)]

    def take(self, rows: np.ndarray) -> "Names":
        """Those of these rows."""
        starts, ends = self.bounds[:-1][rows].tolist(), self.bounds[1:][rows].tolist()
        return Names.pack(self.blob[start:end] for start, end in zip(starts, ends, strict=True))


@dataclass(frozen=True, eq=False)
class FileListing:
    """Image files below a folder."""

    root: str
    names: Names  # paths below root
    sizes: np.ndarray  # int64 [N], bytes
    mtimes: np.ndarray  # int64 [N], nanoseconds
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, row: int) -> bytes:
        """The file."""
        try:
            return self.path(row).read_bytes()
        except OSError as error:
            raise TeddyError(f"{self.place(row)}: cannot be read ({error.strerror}); mend or remove it") from None

    def place(self, row: int) -> str:
        """Its path."""
        return os.fsencode(self.path(row)).decode("utf-8", "replace")

    def path(self, row: int) -> Path:
        """Where the file is; its name may be no text."""
        return Path(self.root, os.fsdecode(self.names[row]))

    def take(self, rows: np.ndarray, labels: np.ndarray | None = None) -> "FileListing":
        """These rows in this order."""
        chosen = self.labels[rows] if labels is None else labels
        return FileListing(self.root, self.names.take(rows), self.sizes[rows], self.mtimes[rows], chosen)

    def fingerprint(self) -> str:
        """The same wherever the folder lies."""
        return digest(self.names.blob, self.names.bounds, self.sizes, self.mtimes, self.labels)

    def seen(self) -> dict[str, str]:
        """Size and time of each image."""
        times = zip(self.names.tolist(), self.sizes.tolist(), self.mtimes.tolist(), strict=True)
        return {name.decode("utf-8", "replace"): f"{size} {time}" for name, size, time in times}


@dataclass(frozen=True, eq=False)
class ArrayListing:
    """Images that are in memory already."""

    pixels: np.ndarray  # uint8 [N, H, W] or [N, H, W, 3]
    labels: np.ndarray
    files: tuple[tuple[str, int], ...]  # what they came from, in order, each with its number of images
    rows: np.ndarray  # int64 [N], counted through all files

    @classmethod
    def of(cls, pixels: np.ndarray, labels: np.ndarray, files: tuple[tuple[str, int], ...]) -> "ArrayListing":
        """All images of the files."""
        return cls(pixels, labels, files, np.arange(len(labels)))

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, row: int) -> np.ndarray:
        """The pixels."""
        return self.pixels[row]

    def place(self, row: int) -> str:
        """File and row, counted from 0."""
        left = int(self.rows[row])
        for name, count in self.files:
            if left < count:
                return f"{name} row {left}"
            left -= count
        raise IndexError(row)

    def take(self, rows: np.ndarray, labels: np.ndarray | None = None) -> "ArrayListing":
        """These rows in this order."""
        chosen = self.labels[rows] if labels is None else labels
        return ArrayListing(self.pixels[rows], chosen, self.files, self.rows[rows])

    def fingerprint(self) -> str:
        """Of the pixels themselves, which are at hand."""
        return digest(repr(self.pixels.shape).encode(), self.pixels, self.labels)

    def seen(self) -> dict[str, str]:
        """A digest of what came from each file."""
        ends = np.cumsum([count for _, count in self.files])
        of_file = np.searchsorted(ends, self.rows, side="right")
        return {
            name: digest(self.pixels[of_file == number], self.labels[of_file == number])
            for number, (name, _) in enumerate(self.files)
            if (of_file == number).any()
        }


def file_stamps(files: Sequence[str], stamps: np.ndarray) -> dict[str, str]:
    """Of files with many images each: `stamps` has a row for each."""
    return {Path(file).name: " ".join(map(str, np.ravel(row))) for file, row in zip(files, stamps, strict=True)}


def digest(*parts: bytes | np.ndarray) -> str:
    """SHA-256 of the parts, each with its length."""
    total = hashlib.sha256()
    for part in parts:
        content = np.ascontiguousarray(part).view(np.uint8).reshape(-1).data if isinstance(part, np.ndarray) else part
        total.update(len(content).to_bytes(8, "little"))
        total.update(content)
    return total.hexdigest()
