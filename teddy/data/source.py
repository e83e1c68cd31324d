"""Real images, opened from wherever they are, in the form that memory allows."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console

from teddy.data.images import Images, ImageSet
from teddy.data.kinds import KINDS, open_catalogue
from teddy.data.listing import Listing
from teddy.data.memory import free_memory, worker_count
from teddy.data.preprocessing import Preprocessing, from_histogram
from teddy.data.streamed import StreamedImages
from teddy.data.survey import Headers, Survey, in_memory, read_headers, remembered, survey, without
from teddy.errors import TeddyError
from teddy.progress import searching

__all__ = ["KINDS", "Images", "Source", "Task", "open_source"]

DEFAULT_SIZE = 64  # where the images do not agree on a size
RESIDENT_SHARE = 0.5  # of the free memory, which the rest of the program needs too
NAMED = 20  # unreadable files that an error names
Form = Literal["resident", "streamed"]


@dataclass(frozen=True)
class Task:
    """What a network is built for."""

    num_classes: int
    channels: int
    image_size: int


@dataclass(frozen=True)
class Source:
    """A data set of real images: training and test part, class names in label order, normalisation."""

    name: str
    classes: tuple[str, ...]
    train: ImageSet
    test: ImageSet
    channels: int
    image_size: int
    preprocessing: Preprocessing
    fingerprint: str
    kind: str = "tensors"
    sizes: tuple[tuple[tuple[int, int], int], ...] = ()
    skipped: tuple[str, ...] = ()
    seen: Callable[[], dict[str, str]] = dict

    @property
    def task(self) -> Task:
        """What a network for these images has to take and tell apart."""
        return Task(len(self.classes), self.channels, self.image_size)

    @property
    def form(self) -> Form:
        """Whether the images lie in memory or are streamed."""
        return "resident" if isinstance(self.train, Images) else "streamed"

    def summary(self) -> str:
        """What was opened, in a line."""
        left_out = f", {len(self.skipped)} unreadable left out" if self.skipped else ""
        return f"{self.name}: {len(self.train):,} + {len(self.test):,} images, {self.form}{left_out}"

    def normalised_by(self, mean: tuple[float, ...], std: tuple[float, ...]) -> "Source":
        """The same images with a normalisation that was made elsewhere."""
        if len(mean) != self.channels:
            raise TeddyError(f"data.mean: has {len(mean)} numbers, and the images {self.channels} channels")
        return replace(self, preprocessing=Preprocessing(mean, std))

    def class_counts(self) -> list[int]:
        """Training images of each class."""
        return torch.bincount(self.train.labels, minlength=len(self.classes)).tolist()

    def describe(self) -> dict[str, object]:
        """What the run folder keeps of it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "fingerprint": self.fingerprint,
            "classes": list(self.classes),
            "class_counts": self.class_counts(),
            "test_images": len(self.test),
            "shape": [self.channels, self.image_size, self.image_size],
            "sizes": [{"width": w, "height": h, "images": count} for (w, h), count in self.sizes[:10]],
            "mean": list(self.preprocessing.mean),
            "std": list(self.preprocessing.std),
            "skipped": list(self.skipped),
        }

    def statistics(self) -> dict[str, object]:
        """What of that travels with a distilled set."""
        described = self.describe()
        return {key: described[key] for key in ("class_counts", "test_images", "sizes", "mean", "std")}

    def draw(self, per_class: int, generator: torch.Generator) -> Images:
        """`per_class` training images of every class, without repetition, class after class."""
        rows = []
        for label in range(len(self.classes)):
            members = (self.train.labels == label).nonzero().flatten()
            rows.append(members[torch.randperm(len(members), generator=generator)[:per_class]])
        return self.train.take(torch.cat(rows))

    def require(self, per_class: int) -> None:
        """Raise unless every class has `per_class` training images: the random control needs as many."""
        for name, count in zip(self.classes, self.class_counts(), strict=True):
            if count < per_class:
                raise TeddyError(
                    f"{self.name}: class '{name}' has {count} training images and {per_class} are needed; "
                    f"lower --ipc to {min(self.class_counts())} or add images"
                )


def open_source(
    source: str,
    *,
    image_size: int | None = None,
    test_share: float = 0.2,
    class_order: Path | None = None,
    loader: Literal["auto", "resident", "streamed"] = "auto",
    workers: int | None = None,
    skip_bad: int = 0,
    device: torch.device | None = None,
    console: Console | None = None,
) -> Source:
    """Open a bundled source by name, or whatever lies at a path; look at every image once.

    Up to `skip_bad` unreadable images are left out; more are an error that names them.
    """
    with searching(console, "images") as found:
        catalogue = open_catalogue(source, class_order=class_order, test_share=test_share, progress=found)
    assert catalogue.test is not None
    listings: list[Listing] = [catalogue.train, catalogue.test]
    total = sum(len(listing) for listing in listings)
    headers = [read_headers(listing, console) for listing in listings]
    bad = _places(listings, [header.bad for header in headers])
    listings = [without(listing, header.bad) for listing, header in zip(listings, headers, strict=True)]
    sizes = _add_up(headers)
    size = image_size or Headers(sizes, False, ()).common_size(otherwise=DEFAULT_SIZE)
    channels = 1 if all(header.grey for header in headers) else 3
    form = loader if loader != "auto" else choose_form(total, channels, size, device)
    streams = [
        StreamedImages(listing, size, channels, workers=worker_count(len(listing)) if workers is None else workers)
        for listing in listings
    ]
    surveys = [_look(stream, form, console) for stream in streams]
    bad += _places(listings, [found.bad for found in surveys])
    if len(bad) > skip_bad:
        raise _unreadable(bad, total)
    parts: list[ImageSet] = [
        in_memory(stream, found)
        if form == "resident"
        else StreamedImages(without(stream.listing, found.bad), size, channels, workers=stream.workers)
        for stream, found in zip(streams, surveys, strict=True)
    ]
    name = source if catalogue.kind == source else Path(source).resolve().name
    return Source(
        name=name,
        classes=catalogue.classes,
        train=parts[0],
        test=parts[1],
        channels=channels,
        image_size=size,
        preprocessing=from_histogram(surveys[0].histogram),
        fingerprint=_digest(catalogue.classes, *parts),
        kind=catalogue.kind,
        sizes=sizes,
        skipped=tuple(bad),
        seen=lambda: {name: stamp for listing in listings for name, stamp in listing.seen().items()},
    )


def choose_form(count: int, channels: int, size: int, device: torch.device | None = None) -> Form:
    """Resident where all pixels take at most half of the memory that is free, on the device and beside it."""
    needed = count * channels * size**2
    return "resident" if needed <= RESIDENT_SHARE * free_memory(device) else "streamed"


def _look(stream: StreamedImages, form: Form, console: Console | None) -> Survey:
    if form == "resident":
        return survey(stream, keep=True, console=console)
    return remembered(stream, lambda: survey(stream, keep=False, console=console))


def _places(listings: list[Listing], rows: list[tuple[int, ...]]) -> list[str]:
    return [listing.place(row) for listing, bad in zip(listings, rows, strict=True) for row in bad]


def _add_up(headers: list[Headers]) -> tuple[tuple[tuple[int, int], int], ...]:
    counts: dict[tuple[int, int], int] = {}
    for header in headers:
        for size, count in header.sizes:
            counts[size] = counts.get(size, 0) + count
    return tuple(sorted(counts.items(), key=lambda item: -item[1]))


def _unreadable(bad: list[str], total: int) -> TeddyError:
    names = ", ".join(sorted(bad)[:NAMED]) + (f" and {len(bad) - NAMED} more" if len(bad) > NAMED else "")
    return TeddyError(
        f"{names}: not readable as an image ({len(bad)} of {total}); "
        f"mend or remove, or go on without by --skip-bad {len(bad)}"
    )


def _digest(classes: tuple[str, ...], *parts: ImageSet) -> str:
    """Changes when an image, a label or a class name does; of streamed images, when a file's size or time does."""
    digest = hashlib.sha256("\0".join(classes).encode())
    for images in parts:
        if isinstance(images, Images):
            digest.update(images.pixels.contiguous().numpy().tobytes())
            digest.update(images.labels.contiguous().numpy().tobytes())
        elif isinstance(images, StreamedImages):
            digest.update(images.listing.fingerprint().encode())
    return digest.hexdigest()
