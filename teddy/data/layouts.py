"""ImageNet-1K and Tiny ImageNet as they are published: class folders to train on, and one folder of test images whose
labels lie in a file beside it."""

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from teddy.data.folder import list_classes
from teddy.data.index import image_suffixes, index_images, visible_folders
from teddy.data.labels import read_names
from teddy.data.listing import Catalogue, FileListing, Progress
from teddy.errors import TeddyError

IMAGENET_ROOTS = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")  # as unpacked by hand, and from Kaggle
SOLUTION = "LOC_val_solution.csv"
DEVKIT = "ILSVRC2012_devkit_t12"
GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"


def is_tiny_imagenet(path: Path) -> bool:
    """Whether it lies there as published; with class folders in val/ it is a folder like any other."""
    return (path / "wnids.txt").is_file() and (path / "val" / "val_annotations.txt").is_file()


def read_tiny_imagenet(path: Path, progress: Progress | None = None) -> Catalogue:
    """The classes are the WordNet numbers in sorted order."""
    listed = sorted(read_names(path / "wnids.txt"))
    classes, train = list_classes(path / "train", progress)
    if different := sorted(set(classes) ^ set(listed)):
        there = "wnids.txt" if different[0] in listed else "train/"
        raise TeddyError(f"source {path}: class '{different[0]}' is in {there} only; unpack the data set again")
    annotations = path / "val" / "val_annotations.txt"
    class_of = {}
    for number, line in enumerate(read_names(annotations), start=1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise TeddyError(f"{annotations} line {number}: no image and class with a tab between; fetch it again")
        class_of[fields[0]] = fields[1].strip()
    test = _label_flat(path / "val" / "images", class_of, classes, annotations, progress)
    return Catalogue("tiny-imagenet", classes, train, test)


def is_imagenet(path: Path) -> bool:
    """Whether train/ has class folders and val/ has images but no folders."""
    return _imagenet_root(path) is not None


def read_imagenet(path: Path, progress: Progress | None = None) -> Catalogue:
    """The classes are the folders' names in sorted order; the labels of val/ come from Kaggle's table or the devkit."""
    root = _imagenet_root(path)
    assert root is not None
    for folder in dict.fromkeys((path, root)):
        if (folder / SOLUTION).is_file():
            where, class_of = folder / SOLUTION, _solution(folder / SOLUTION)
            break
        if (folder / DEVKIT / "data" / GROUND_TRUTH).is_file():
            where, class_of = folder / DEVKIT, _ground_truth(folder / DEVKIT / "data")
            break
    else:
        raise TeddyError(f"source {path}: the labels of {root / 'val'} are missing; add {SOLUTION} or {DEVKIT}/ there")
    classes, train = list_classes(root / "train", progress)
    test = _label_flat(root / "val", class_of, classes, where, progress)
    return Catalogue("imagenet", classes, train, test)


def _imagenet_root(path: Path) -> Path | None:
    for below in IMAGENET_ROOTS:
        root = path / below
        if (root / "train").is_dir() and (root / "val").is_dir() and _is_flat(root / "val"):
            return root
    return None


def _is_flat(folder: Path) -> bool:
    files = (file for file in folder.iterdir() if not file.name.startswith("."))
    return not visible_folders(folder) and any(file.suffix.lower() in image_suffixes() for file in files)


def _solution(path: Path) -> dict[str, str]:
    """Kaggle's table: `ILSVRC2012_val_00048981,n03995372 85 1 499 272`, the class first."""
    class_of = {}
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if number == 1 and row[:1] == ["ImageId"]:
                continue
            if len(row) != 2 or not row[1].split():
                raise TeddyError(f"{path} line {number}: no image and class with a comma between; fetch it again")
            class_of[f"{row[0]}.JPEG"] = row[1].split()[0]
    return class_of


def _ground_truth(devkit: Path) -> dict[str, str]:
    """The devkit's list: line i is the class of validation image i, by its number in `meta.mat`."""
    from scipy.io import loadmat  # slow to import, and few need it

    try:
        synsets = loadmat(devkit / "meta.mat", squeeze_me=True)["synsets"]
        wnid_of = {
            int(number): str(wnid) for number, wnid in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)
        }
    except Exception as error:  # a damaged file raises nearly anything
        raise TeddyError(f"{devkit / 'meta.mat'}: not readable ({type(error).__name__}); fetch it again") from None
    class_of = {}
    for number, line in enumerate(read_names(devkit / GROUND_TRUTH), start=1):
        if not line.strip().isdigit() or int(line) not in wnid_of:
            raise TeddyError(f"{devkit / GROUND_TRUTH} line {number}: '{line.strip()}' is no class; fetch it again")
        class_of[f"ILSVRC2012_val_{number:08d}.JPEG"] = wnid_of[int(line)]
    return class_of


def _label_flat(
    folder: Path, class_of: Mapping[str, str], classes: tuple[str, ...], where: Path, progress: Progress | None
) -> FileListing:
    """The images of one folder, with classes by file name; every image must have one, and every one an image."""
    listing = index_images(folder, progress).listing({"": 0})
    label_of = {name: label for label, name in enumerate(classes)}
    labels = []
    names = [name.decode("utf-8", "replace") for name in listing.names.tolist()]
    for name in names:
        if name not in class_of:
            raise TeddyError(f"{folder / name}: has no class in {where}; add a line or remove the image")
        if class_of[name] not in label_of:
            raise TeddyError(f"{where}: class '{class_of[name]}' of {name} is in the test part only; add it to train/")
        labels.append(label_of[class_of[name]])
    if missing := sorted(set(class_of) - set(names)):
        raise TeddyError(f"{folder / missing[0]}: is missing, though {where} lists it; unpack the data set again")
    return listing.take(np.arange(len(listing)), np.array(labels, np.int64))
