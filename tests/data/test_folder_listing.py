"""Folders of images, as people have them: what is listed, and in which order."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from teddy.data.kinds import open_catalogue
from teddy.data.listing import Catalogue
from teddy.errors import TeddyError


def save(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), shade).save(path)
    return path


def fill(root: Path, per_class: int = 5) -> None:
    for name in ("a cat", "собака"):
        for number in range(per_class):
            save(root / name / f"{number}.png", number)


def places(catalogue: Catalogue) -> list[str]:
    listings = [catalogue.train] + ([catalogue.test] if catalogue.test else [])
    return sorted(listing.place(row) for listing in listings for row in range(len(listing)))


def test_one_folder_is_split_the_same_way_each_time(tmp_path: Path):
    fill(tmp_path, per_class=10)
    first, second = (open_catalogue(str(tmp_path)) for _ in range(2))
    assert first.test is not None
    assert second.test is not None
    assert (first.kind, first.classes) == ("folder", ("a cat", "собака"))
    assert np.bincount(first.train.labels).tolist() == [8, 8]
    assert np.bincount(first.test.labels).tolist() == [2, 2]
    assert first.train.fingerprint() == second.train.fingerprint()
    assert first.test.fingerprint() == second.test.fingerprint()
    assert places(first) == sorted(str(path) for path in tmp_path.rglob("*.png"))


def test_each_image_has_its_own_content_and_label(tmp_path: Path):
    fill(tmp_path / "train", per_class=3)
    fill(tmp_path / "val", per_class=2)
    catalogue = pickle.loads(pickle.dumps(open_catalogue(str(tmp_path))))
    for listing in (catalogue.train, catalogue.test):
        for row in range(len(listing)):
            path = Path(listing.place(row))
            assert listing.read(row) == path.read_bytes()
            assert catalogue.classes[listing.labels[row]] == path.parent.name


@pytest.mark.parametrize("name", ["val", "validation", "test"])
def test_a_split_that_is_there_is_kept(tmp_path: Path, name: str):
    fill(tmp_path / "train", per_class=3)
    fill(tmp_path / name, per_class=2)
    catalogue = open_catalogue(str(tmp_path))
    assert catalogue.test is not None
    assert (len(catalogue.train), len(catalogue.test)) == (6, 4)
    assert all(f"/{name}/" in catalogue.test.place(row) for row in range(4))


def test_val_comes_before_test(tmp_path: Path):
    for part in ("train", "val", "test"):
        fill(tmp_path / part, per_class=2)
    catalogue = open_catalogue(str(tmp_path))
    assert catalogue.test is not None
    assert "/val/" in catalogue.test.place(0)


def test_train_alone_is_split(tmp_path: Path):
    fill(tmp_path / "train", per_class=5)
    catalogue = open_catalogue(str(tmp_path))
    assert catalogue.classes == ("a cat", "собака")
    assert len(places(catalogue)) == 10


def test_a_test_part_with_fewer_classes_keeps_the_labels(tmp_path: Path):
    fill(tmp_path / "train")
    save(tmp_path / "train" / "b" / "0.png")
    fill(tmp_path / "val", per_class=1)
    catalogue = open_catalogue(str(tmp_path))
    assert catalogue.classes == ("a cat", "b", "собака")
    assert catalogue.test is not None
    assert catalogue.test.labels.tolist() == [0, 2]


def test_files_come_in_the_order_of_their_paths(tmp_path: Path):
    fill(tmp_path / "val", per_class=1)
    fill(tmp_path / "train", per_class=1)
    for name in ("x.png", "x/z.png", "x-y.png", "X.png", "x/a/b.png"):
        save(tmp_path / "train" / "a cat" / name)
    train = open_catalogue(str(tmp_path)).train
    listed = [Path(train.place(row)) for row in range(len(train))]
    assert listed == sorted(listed)
    assert len(listed) == 7


def test_images_in_nested_folders_count_and_other_files_do_not(tmp_path: Path):
    fill(tmp_path, per_class=4)
    save(tmp_path / "a cat" / "more" / "deep.JPEG")
    for name in ("notes.txt", ".hidden.png", "png", "archive.png.gz"):
        (tmp_path / "a cat" / name).write_text("x")
    save(tmp_path / "a cat" / ".thumbnails" / "0.png")
    save(tmp_path / ".cache" / "0.png")
    save(tmp_path / "beside.png")
    found = places(open_catalogue(str(tmp_path)))
    assert len(found) == 9
    assert str(tmp_path / "a cat" / "more" / "deep.JPEG") in found


def test_only_regular_files_are_listed(tmp_path: Path):
    fill(tmp_path, per_class=2)
    os.mkfifo(tmp_path / "a cat" / "pipe.png")
    (tmp_path / "a cat" / "device.png").symlink_to("/dev/zero")
    (tmp_path / "a cat" / "folder.png").mkdir()
    assert len(places(open_catalogue(str(tmp_path)))) == 4


def test_links_are_followed_and_circles_end(tmp_path: Path):
    photos = tmp_path / "photos"
    fill(photos, per_class=2)
    save(tmp_path / "elsewhere" / "far.png")
    (photos / "a cat" / "link").symlink_to(tmp_path / "elsewhere")
    (photos / "a cat" / "link.png").symlink_to(tmp_path / "elsewhere" / "far.png")
    (photos / "a cat" / "itself").symlink_to(photos / "a cat")
    (photos / "a cat" / "up").symlink_to(photos)
    (photos / "собака" / "top").symlink_to(tmp_path)
    (tmp_path / "elsewhere" / "back").symlink_to(photos / "a cat")
    found = places(open_catalogue(str(photos)))
    assert len(found) == 6
    assert str(photos / "a cat" / "link" / "far.png") in found
    assert str(photos / "a cat" / "link.png") in found


def test_the_fingerprint_follows_the_files(tmp_path: Path):
    fill(tmp_path)
    os.utime(save(tmp_path / "a cat" / "0.png"), ns=(10**18, 10**18))

    def fingerprints() -> tuple[str, str]:
        catalogue = open_catalogue(str(tmp_path))
        assert catalogue.test is not None
        return catalogue.train.fingerprint(), catalogue.test.fingerprint()

    seen = {fingerprints()}
    os.utime(tmp_path / "a cat" / "0.png", ns=(10**18, 10**18 + 1))
    seen.add(fingerprints())
    save(tmp_path / "a cat" / "new.png")
    seen.add(fingerprints())
    (tmp_path / "a cat" / "new.png").rename(tmp_path / "a cat" / "newer.png")
    seen.add(fingerprints())
    assert len(seen) == 4
    assert fingerprints() in seen


def test_found_images_are_counted_on_the_way(tmp_path: Path):
    fill(tmp_path, per_class=3)
    told: list[int] = []
    open_catalogue(str(tmp_path), progress=told.append)
    assert told == [0, 3, 6]


def one_class(root: Path) -> None:
    save(root / "cat" / "0.png")


def empty_class(root: Path) -> None:
    fill(root)
    (root / "dog").mkdir()


def one_image(root: Path) -> None:
    fill(root)
    save(root / "dog" / "0.png")


def stray_class(root: Path) -> None:
    fill(root / "train")
    fill(root / "val")
    save(root / "val" / "owl" / "0.png")


def dangling(root: Path) -> None:
    fill(root)
    (root / "a cat" / "gone.png").symlink_to("/nowhere/gone.png")


def not_text(root: Path) -> None:
    fill(root)
    Path(os.fsdecode(os.fsencode(root) + b"/\xff")).mkdir()


MISTAKES = {
    "empty": (lambda _: None, "source {}: needs a folder of images for each of two classes or more, found none"),
    "one class": (one_class, "source {}: needs a folder of images for each of two classes or more, found only 'cat'"),
    "an empty class": (empty_class, "source {}: class folder 'dog' holds no images"),
    "one image": (one_image, "{}: class 'dog' has one image; two are needed, one of them to test on"),
    "a class to test on only": (stray_class, "{}: class 'owl' is in the test part only; add it to {}/train"),
    "a link to nothing": (dangling, "{}/a cat/gone.png: a link to nothing; mend or remove it"),
    "a name that is no text": (not_text, "{}: the name of folder b'\\xff' is not UTF-8; rename it"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(tmp_path: Path, mistake: str):
    make, message = MISTAKES[mistake]
    make(tmp_path)
    with pytest.raises(TeddyError) as caught:
        open_catalogue(str(tmp_path))
    assert str(caught.value) == message.replace("{}", str(tmp_path))


@pytest.mark.parametrize("name", ["notes.txt", "pipe"])
def test_a_source_that_is_no_folder_is_an_error(tmp_path: Path, name: str):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(TeddyError) as caught:
        open_catalogue(str(tmp_path / name))
    expected = f"source {tmp_path / name}: is a file; give the folder that holds one folder of images per class"
    assert str(caught.value) == expected


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fill(tmp_path)
    scandir = os.scandir

    def refuse(path: str | Path) -> object:
        if str(path).endswith("a cat"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)  # chmod would not stop root
    with pytest.raises(TeddyError, match=r"a cat: cannot be read \(Permission denied\); mend or remove it"):
        open_catalogue(str(tmp_path))
