"""A folder of images: `<class>/…/image`, or `train/<class>/…` beside `val/<class>/…` or `test/<class>/…`."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from teddy.data.decode import UNREADABLE, decode, probe
from teddy.data.split import split_rows
from teddy.errors import TeddyError

DEFAULT_SIZE = 64  # where the images do not agree on a size
Listing = list[tuple[Path, int]]  # files with their labels


def read_folder(
    source: str, image_size: int | None, test_share: float
) -> tuple[tuple[str, ...], Tensor, Tensor, Tensor, Tensor]:
    """Classes, training pixels and labels, test pixels and labels."""
    root = Path(source)
    if not root.is_dir():
        raise TeddyError(f"source {source}: is a file; give the folder that holds one folder of images per class")
    parts = {name: root / name for name in ("train", "val", "test") if (root / name).is_dir()}
    if "train" in parts and len(parts) > 1:
        classes, train = _list_images(parts["train"])
        test_classes, test = _list_images(parts.get("val", parts.get("test", root)))
        if stray := sorted(set(test_classes) - set(classes)):
            raise TeddyError(f"{source}: class '{stray[0]}' is in the test part only; add it to {parts['train']}")
        place = {name: label for label, name in enumerate(classes)}
        test = [(path, place[test_classes[label]]) for path, label in test]
    else:
        classes, listing = _list_images(parts.get("train", root))
        smallest, count = min(Counter(classes[label] for _, label in listing).items(), key=lambda item: item[1])
        if count < 2:
            raise TeddyError(f"{source}: class '{smallest}' has one image; two are needed, one of them to test on")
        train_rows, test_rows = split_rows(torch.tensor([label for _, label in listing]), test_share)
        train, test = [listing[i] for i in train_rows.tolist()], [listing[i] for i in test_rows.tolist()]
    size, channels = _agree([path for path, _ in train + test], image_size)
    return (tuple(classes), *_decode_all(train, size, channels), *_decode_all(test, size, channels))


def _list_images(root: Path) -> tuple[list[str], Listing]:
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(classes) < 2:
        found = f"only '{classes[0]}'" if classes else "none"
        raise TeddyError(f"source {root}: needs a folder of images for each of two classes or more, found {found}")
    listing = []
    for label, name in enumerate(classes):
        files = sorted(_image_files(root / name))
        if not files:
            raise TeddyError(f"source {root}: class folder '{name}' holds no images")
        listing += [(path, label) for path in files]
    return classes, listing


def _image_files(folder: Path) -> Iterator[Path]:
    suffixes = Image.registered_extensions()
    for parent, _, names in os.walk(folder, followlinks=True):
        for name in names:
            if not name.startswith(".") and Path(name).suffix.lower() in suffixes:
                yield Path(parent, name)


def _agree(paths: Sequence[Path], image_size: int | None) -> tuple[int, int]:
    """The side in pixels and the number of channels for all images."""
    probes = _each(probe, paths)
    sides = {side for size, _ in probes for side in size}
    own_size = sides.pop() if len(sides) == 1 else DEFAULT_SIZE
    return image_size or own_size, 1 if all(grey for _, grey in probes) else 3


def _decode_all(listing: Listing, size: int, channels: int) -> tuple[Tensor, Tensor]:
    pixels = _each(lambda path: decode(path, size, channels), [path for path, _ in listing])
    return torch.stack(pixels), torch.tensor([label for _, label in listing])


def _each(read: Callable[[Path], Any], paths: Sequence[Path]) -> list[Any]:
    """`read` every file, several at a time; those that are no images are named together."""

    def attempt(path: Path) -> Any:
        try:
            return read(path)
        except UNREADABLE:
            return None

    with ThreadPoolExecutor() as workers:
        results = list(workers.map(attempt, paths))
    bad = sorted(path for path, result in zip(paths, results, strict=True) if result is None)
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise TeddyError(f"{bad[0]}{more}: not readable as an image; mend or remove it")
    return results
