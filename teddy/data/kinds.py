"""Every kind of source: what it looks like, and how it is listed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from teddy.data import parquet, tar
from teddy.data.cifar import is_cifar, read_cifar
from teddy.data.digits import read_digits
from teddy.data.folder import read_folder
from teddy.data.labels import reorder
from teddy.data.layouts import is_imagenet, is_tiny_imagenet, read_imagenet, read_tiny_imagenet
from teddy.data.listing import Catalogue, Progress
from teddy.data.shards import has_shards
from teddy.data.split import split_rows
from teddy.errors import TeddyError, unknown


class Read(Protocol):
    """Lists what lies at a path."""

    def __call__(self, path: Path, /, progress: Progress | None = None) -> Catalogue:
        """`progress` is told how many images have been found so far."""


@dataclass(frozen=True)
class Kind:
    """A kind of source: what it looks like to a user, how it is recognised, how it is read."""

    summary: str
    recognise: Callable[[Path], bool]
    read: Read


def _by_name_only(_: Path) -> bool:
    return False


def _digits(_: Path, /, progress: Progress | None = None) -> Catalogue:
    del progress  # they are there at once
    return read_digits()


KINDS = {
    "digits": Kind(
        "1,797 handwritten digits that come with scikit-learn; 16 × 16, grey, 10 classes", _by_name_only, _digits
    ),
    "parquet": Kind(
        "Parquet files as Hugging Face has them: train-*.parquet, and val-* or test-*",
        lambda path: has_shards(path, parquet.SUFFIX),
        parquet.read_parquet,
    ),
    "tar": Kind(
        "WebDataset's tar files: train-*.tar, and val-* or test-*; key.jpg with key.cls or key.json",
        lambda path: has_shards(path, tar.SUFFIX),
        tar.read_tar,
    ),
    "cifar": Kind("CIFAR-10's or CIFAR-100's files for Python", is_cifar, read_cifar),
    "tiny-imagenet": Kind("Tiny ImageNet's folder as published", is_tiny_imagenet, read_tiny_imagenet),
    "imagenet": Kind(
        "ImageNet-1K's train/ and flat val/, with LOC_val_solution.csv or the devkit", is_imagenet, read_imagenet
    ),
    "folder": Kind(
        "a folder with one folder of images per class, or with train/ and val/ (or test/) of such",
        Path.exists,
        read_folder,
    ),
}
BY_NAME = ("digits",)


def open_catalogue(
    source: str, *, class_order: Path | None = None, test_share: float = 0.2, progress: Progress | None = None
) -> Catalogue:
    """List a source, a bundled one by name or any other by path. Where it has no test part, `test_share` of every class
    becomes one, the same images each time."""
    path = Path(source)
    catalogue = KINDS[_recognise(source)].read(path, progress=progress)
    if class_order is not None:
        catalogue = reorder(catalogue, class_order)
    return catalogue if catalogue.test is not None else _with_test_part(catalogue, path, test_share)


def _recognise(source: str) -> str:
    if source in BY_NAME:
        return source
    for name, kind in KINDS.items():
        if kind.recognise(Path(source)):
            return name
    if "/" in source or "\\" in source:
        raise TeddyError(f"source {source}: no such folder")
    raise unknown("source", source, [*BY_NAME, "FOLDER"])


def _with_test_part(catalogue: Catalogue, path: Path, test_share: float) -> Catalogue:
    labels = catalogue.train.labels
    counts = np.bincount(labels, minlength=len(catalogue.classes))
    if (counts == 1).any():
        smallest = catalogue.classes[int(np.argmax(counts == 1))]
        raise TeddyError(f"{path}: class '{smallest}' has one image; two are needed, one of them to test on")
    train, test = (rows.numpy() for rows in split_rows(torch.from_numpy(labels), test_share))
    return replace(catalogue, train=catalogue.train.take(train), test=catalogue.train.take(test))
