"""ImageNet-1K and Tiny ImageNet as they are published."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from teddy.data.kinds import open_catalogue
from teddy.data.listing import Listing
from teddy.errors import TeddyError

WNIDS = ("n01440764", "n02124075", "n04067472")
VAL = ("n04067472", "n01440764", "n04067472", "n02124075")  # the classes of the validation images, in their order


def save(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), shade).save(path, "jpeg")


def tiny(root: Path) -> Path:
    for wnid in WNIDS:
        for number in range(2):
            save(root / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", number)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t3\t3\n")
    lines = [f"val_{number}.JPEG\t{wnid}\t0\t0\t3\t3\n" for number, wnid in enumerate(VAL)]
    for number in range(len(VAL)):
        save(root / "val" / "images" / f"val_{number}.JPEG", 50 + number)
    (root / "val" / "val_annotations.txt").write_text("".join(reversed(lines)))
    save(root / "test" / "images" / "test_0.JPEG")
    (root / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in reversed(WNIDS)))
    (root / "words.txt").write_text("n01440764\ttench, Tinca tinca\n")
    return root


def imagenet(root: Path, images: Path | None = None) -> Path:
    images = images or root
    for wnid in WNIDS:
        for number in range(2):
            save(images / "train" / wnid / f"{wnid}_{number}.JPEG", number)
    for number in range(1, len(VAL) + 1):
        save(images / "val" / f"ILSVRC2012_val_{number:08d}.JPEG", 50 + number)
    return root


def solution(folder: Path) -> Path:
    lines = [f"ILSVRC2012_val_{number:08d},{wnid} 85 1 499 272 {wnid} 1 2 3 4 \n" for number, wnid in enumerate(VAL, 1)]
    path = folder / "LOC_val_solution.csv"
    path.write_text("ImageId,PredictionString\n" + "".join(reversed(lines)))
    return path


def devkit(folder: Path) -> Path:
    """The numbers of the devkit follow no order of the names; a parent synset comes last and is no class."""
    data = folder / "ILSVRC2012_devkit_t12" / "data"
    data.mkdir(parents=True)
    numbers = {"n02124075": 1, "n04067472": 2, "n01440764": 3}
    kinds = [("ILSVRC2012_ID", "f8"), ("WNID", "O"), ("words", "O"), ("num_children", "f8")]
    synsets = [(number, wnid, "words", 0) for wnid, number in numbers.items()] + [(4, "n00000000", "parent", 3)]
    savemat(data / "meta.mat", {"synsets": np.array(synsets, dtype=kinds)[:, None]})
    lines = "".join(f"{numbers[wnid]}\n" for wnid in VAL)
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text(lines)
    return data


def classes_by_file(classes: tuple[str, ...], listing: Listing | None) -> dict[str, str]:
    assert listing is not None
    return {Path(listing.place(row)).name: classes[listing.labels[row]] for row in range(len(listing))}


def test_tiny_imagenet_as_published(tmp_path: Path):
    catalogue = open_catalogue(str(tiny(tmp_path)))
    assert (catalogue.kind, catalogue.classes) == ("tiny-imagenet", WNIDS)
    assert catalogue.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert classes_by_file(catalogue.classes, catalogue.train)["n02124075_1.JPEG"] == "n02124075"
    assert classes_by_file(catalogue.classes, catalogue.test) == {
        f"val_{number}.JPEG": wnid for number, wnid in enumerate(VAL)
    }
    again = pickle.loads(pickle.dumps(catalogue))
    for listing in (again.train, again.test):
        assert all(listing.read(row) == Path(listing.place(row)).read_bytes() for row in range(len(listing)))


def test_tiny_imagenet_with_class_folders_in_val_is_a_folder(tmp_path: Path):
    tiny(tmp_path)
    for number, wnid in enumerate(VAL):
        place = tmp_path / "val" / wnid / f"val_{number}.JPEG"
        place.parent.mkdir(exist_ok=True)
        (tmp_path / "val" / "images" / f"val_{number}.JPEG").rename(place)
    (tmp_path / "val" / "images").rmdir()
    (tmp_path / "val" / "val_annotations.txt").unlink()
    catalogue = open_catalogue(str(tmp_path))
    assert (catalogue.kind, catalogue.classes) == ("folder", WNIDS)
    assert catalogue.test is not None
    assert len(catalogue.test) == 4


TINY_MISTAKES = {
    "a class not listed": (lambda root: save(root / "train" / "n09" / "0.JPEG"), "class 'n09' is in train/ only"),
    "a class not there": (
        lambda root: (root / "wnids.txt").write_text("\n".join([*WNIDS, "n09"])),
        "class 'n09' is in wnids.txt only",
    ),
    "an image without a class": (
        lambda root: save(root / "val" / "images" / "val_9.JPEG"),
        r"val_9\.JPEG: has no class in .*val_annotations\.txt",
    ),
    "an image that is missing": (
        lambda root: (root / "val" / "images" / "val_2.JPEG").unlink(),
        r"val_2\.JPEG: is missing, though .*val_annotations\.txt lists it",
    ),
    "a class to test on only": (
        lambda root: (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn09\t0\t0\t1\t1\n"),
        r"class 'n09' of val_0\.JPEG is in the test part only",
    ),
    "no tab": (
        lambda root: (root / "val" / "val_annotations.txt").write_text("val_0.JPEG n01440764\n"),
        r"val_annotations\.txt line 1: no image and class with a tab between",
    ),
}


@pytest.mark.parametrize("mistake", TINY_MISTAKES)
def test_a_mistake_in_tiny_imagenet_is_one_line(tmp_path: Path, mistake: str):
    make, message = TINY_MISTAKES[mistake]
    make(tiny(tmp_path))
    with pytest.raises(TeddyError, match=message):
        open_catalogue(str(tmp_path))


@pytest.mark.parametrize("below", ["", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC"])
@pytest.mark.parametrize("beside", [solution, devkit])
def test_imagenet_in_each_layout(tmp_path: Path, below: str, beside: object):
    imagenet(tmp_path, tmp_path / below)
    beside(tmp_path)  # type: ignore[operator]
    catalogue = open_catalogue(str(tmp_path))
    assert (catalogue.kind, catalogue.classes) == ("imagenet", WNIDS)
    assert catalogue.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert classes_by_file(catalogue.classes, catalogue.test) == {
        f"ILSVRC2012_val_{number:08d}.JPEG": wnid for number, wnid in enumerate(VAL, 1)
    }
    assert catalogue.test is not None
    assert catalogue.test.read(2) == Path(catalogue.test.place(2)).read_bytes()


def test_imagenet_with_class_folders_in_val_is_a_folder(tmp_path: Path):
    imagenet(tmp_path)
    solution(tmp_path)
    for path in list((tmp_path / "val").iterdir()):
        place = tmp_path / "val" / WNIDS[0] / path.name
        place.parent.mkdir(exist_ok=True)
        path.rename(place)
    save(tmp_path / "val" / WNIDS[1] / "0.JPEG")
    assert open_catalogue(str(tmp_path)).kind == "folder"


def rewrite(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new, 1))


IMAGENET_MISTAKES = {
    "no labels": (
        lambda _: None,
        r"the labels of .*val are missing; add LOC_val_solution\.csv or ILSVRC2012_devkit_t12/",
    ),
    "an image without a class": (
        lambda root: solution(root) and save(root / "val" / "ILSVRC2012_val_00000009.JPEG"),
        r"ILSVRC2012_val_00000009\.JPEG: has no class in .*LOC_val_solution\.csv",
    ),
    "an image that is missing": (
        lambda root: solution(root) and (root / "val" / "ILSVRC2012_val_00000001.JPEG").unlink(),
        r"ILSVRC2012_val_00000001\.JPEG: is missing",
    ),
    "a table of something else": (
        lambda root: rewrite(solution(root), "ILSVRC2012_val_00000004,", "ILSVRC2012_val_00000004;"),
        r"LOC_val_solution\.csv line 2: no image and class with a comma between",
    ),
    "a number that is no class": (
        lambda root: (devkit(root) / "ILSVRC2012_validation_ground_truth.txt").write_text("1\n77\n"),
        r"ground_truth\.txt line 2: '77' is no class",
    ),
    "damaged names": (lambda root: (devkit(root) / "meta.mat").write_text("x"), r"meta\.mat: not readable"),
    "missing names": (
        lambda root: (devkit(root) / "meta.mat").unlink(),
        r"meta\.mat: not readable \(OSError\)",
    ),
}


@pytest.mark.parametrize("mistake", IMAGENET_MISTAKES)
def test_a_mistake_in_imagenet_is_one_line(tmp_path: Path, mistake: str):
    make, message = IMAGENET_MISTAKES[mistake]
    make(imagenet(tmp_path))
    with pytest.raises(TeddyError, match=message):
        open_catalogue(str(tmp_path))
