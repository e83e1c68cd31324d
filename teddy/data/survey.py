"""Looking at every image once: which are unreadable, how large and how bright they are, whether they have colour."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import zip_longest

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from teddy.data.cache import cache_folder
from teddy.data.decode import UNREADABLE, probe, quietly
from teddy.data.images import Images
from teddy.data.listing import FileListing, Listing
from teddy.data.preprocessing import histogram
from teddy.data.streamed import StreamedImages
from teddy.errors import TeddyError
from teddy.files import write_whole
from teddy.progress import counting

BATCH = 256
READERS = 8
MANY = 5000  # from here on, progress is shown and worker processes pay


@dataclass(frozen=True)
class Headers:
    """What the images' headers say; `sizes` are (width, height) with how many images have them."""

    sizes: tuple[tuple[tuple[int, int], int], ...]
    grey: bool
    bad: tuple[int, ...]

    def common_size(self, otherwise: int) -> int:
        """The side in pixels of images that are all squares of one size, else `otherwise`."""
        sides = {side for size, _ in self.sizes for side in size}
        return sides.pop() if len(sides) == 1 else otherwise


def read_headers(listing: Listing, console: Console | None = None) -> Headers:
    """Every image's header."""

    def attempt(row: int) -> tuple[tuple[int, int], bool] | None:
        try:
            # A path lets only the beginning of the file be read.
            return probe(listing.path(row) if isinstance(listing, FileListing) else listing.read(row))
        except (*UNREADABLE, TeddyError):
            return None

    sizes: Counter[tuple[int, int]] = Counter()
    bad, grey = [], True
    parts = [range(first, min(first + BATCH, len(listing))) for first in range(0, len(listing), BATCH)]
    with (
        quietly(),
        # Files are waited for; what lies in memory is not, and threads would only be in each other's way.
        ThreadPoolExecutor(READERS if isinstance(listing, FileListing) else 1) as workers,
        counting(_if_many(console, len(listing)), "headers", len(listing)) as count,
    ):
        for rows, part in zip(parts, workers.map(lambda rows: [attempt(row) for row in rows], parts), strict=True):
            for row, found in zip(rows, part, strict=True):
                if found is None:
                    bad.append(row)
                else:
                    sizes[found[0]] += 1
                    grey = grey and found[1]
            count(len(rows))
    return Headers(tuple(sizes.most_common()), grey, tuple(bad))


@dataclass(frozen=True)
class Survey:
    """What decoding every image has shown: levels counted [C, 256], unreadable rows, and the pixels if kept."""

    histogram: Tensor
    bad: tuple[int, ...]
    pixels: Tensor | None = None


def survey(images: StreamedImages, *, keep: bool, console: Console | None = None) -> Survey:
    """Decode every image once, and keep the pixels [N, C, S, S] if asked to."""
    total = torch.zeros(images.channels, 256, dtype=torch.long)
    shape = (len(images), images.channels, images.size, images.size)
    pixels = torch.empty(shape, dtype=torch.uint8) if keep else None
    bad: list[int] = []
    parts = in_runs(list(torch.arange(len(images)).split(BATCH)), images.workers)
    with counting(_if_many(console, len(images)), "images", len(images)) as count, _one_thread():
        for rows, (batch, unreadable) in zip(parts, images.decoded(parts), strict=True):
            good = torch.tensor([row not in unreadable for row in rows.tolist()])
            total += histogram(batch[good] if unreadable else batch)
            bad += unreadable
            if pixels is not None:
                pixels[int(rows[0]) : int(rows[-1]) + 1] = batch
            count(len(rows))
    return Survey(total, tuple(sorted(bad)), pixels)


@contextmanager
def _one_thread() -> Iterator[None]:
    """For this process: the cores are the workers', and threads that share a sum would wait for each other there."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def in_runs(parts: list[Tensor], workers: int) -> list[Tensor]:
    """The parts in an order in which each of `workers`, who take them in turn, gets neighbours: what a file holds of
    them is then read by one of them, once."""
    runs = np.array_split(
        np.arange(len(parts)), max(workers, 1)
    )  # the longer ones first: nobody is skipped but at last
    return [parts[place] for places in zip_longest(*runs) for place in places if place is not None]


def remembered(images: StreamedImages, look: Callable[[], Survey]) -> Survey:
    """`look`, or what it found when the same images were last looked at: ImageNet takes many minutes."""
    key = sha256(f"{images.listing.fingerprint()} {images.size} {images.channels}".encode()).hexdigest()
    folder = cache_folder()
    if folder is None:
        return look()
    path = folder / "statistics" / f"{key}.json"
    try:
        kept = json.loads(path.read_text())
        return Survey(torch.tensor(kept["histogram"]).view(images.channels, 256), tuple(kept["bad"]))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):  # not there, or not whole
        found = look()
    with suppress(OSError):  # a cache that cannot be written costs time, nothing else
        write_whole(path, json.dumps({"histogram": found.histogram.tolist(), "bad": found.bad}).encode())
    return found


def without(listing: Listing, rows: tuple[int, ...]) -> Listing:
    """The listing less some rows."""
    if not rows:
        return listing
    return listing.take(np.setdiff1d(np.arange(len(listing)), np.array(rows)))


def in_memory(images: StreamedImages, found: Survey) -> Images:
    """The images that a survey has kept, less the unreadable ones."""
    assert found.pixels is not None
    good = torch.ones(len(images), dtype=torch.bool)
    good[list(found.bad)] = False
    return Images(found.pixels, images.labels) if good.all() else Images(found.pixels[good], images.labels[good])


def _if_many(console: Console | None, count: int) -> Console | None:
    return console if count >= MANY else None
