"""A folder of images: `<class>/…/image`, or `train/<class>/…` beside `val/<class>/…` or `test/<class>/…`."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from teddy.data.index import index_images, visible_folders
from teddy.data.listing import Catalogue, FileListing, Progress
from teddy.errors import TeddyError

TEST_PARTS = ("val", "validation", "test")  # the first that is there


def read_folder(root: Path, progress: Progress | None = None) -> Catalogue:
    """The classes are the folders' names in sorted order."""
    if not root.is_dir():
        raise TeddyError(f"source {root}: is a file; give the folder that holds one folder of images per class")
    train_root = root / "train"
    test_root = next((root / name for name in TEST_PARTS if (root / name).is_dir()), None)
    if not train_root.is_dir() or test_root is None:
        classes, listing = list_classes(train_root if train_root.is_dir() else root, progress)
        return Catalogue("folder", classes, listing, None)
    classes, train = list_classes(train_root, progress)
    test_classes, test = list_classes(test_root, progress)
    if stray := sorted(set(test_classes) - set(classes)):
        raise TeddyError(f"{root}: class '{stray[0]}' is in the test part only; add it to {train_root}")
    labels = np.array([classes.index(name) for name in test_classes], np.int64)
    return Catalogue("folder", classes, train, replace(test, labels=labels[test.labels]))


def list_classes(root: Path, progress: Progress | None = None) -> tuple[tuple[str, ...], FileListing]:
    """One class per folder, its images at any depth."""
    classes = tuple(visible_folders(root))
    if len(classes) < 2:
        found = f"only '{classes[0]}'" if classes else "none"
        raise TeddyError(f"source {root}: needs a folder of images for each of two classes or more, found {found}")
    index = index_images(root, progress)
    for name in classes:
        if not index.count(name):
            raise TeddyError(f"source {root}: class folder '{name}' holds no images")
    return classes, index.listing({name: label for label, name in enumerate(classes)})
