"""Listings on their own, the split and the class order that every kind shares."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from teddy.data.kinds import KINDS, open_catalogue
from teddy.data.labels import Written, number_labels
from teddy.data.listing import ArrayListing, FileListing, Names
from teddy.errors import TeddyError


def files(root: Path) -> FileListing:
    contents = {"a.png": b"first", "b c.png": b"second one", "ф/д.png": b"third"}
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    status = [(root / name).stat() for name in contents]
    return FileListing(
        str(root),
        Names.pack(name.encode() for name in contents),
        np.array([entry.st_size for entry in status]),
        np.array([entry.st_mtime_ns for entry in status]),
        np.array([0, 1, 1]),
    )


def array() -> ArrayListing:
    pixels = np.arange(3 * 4 * 4 * 3, dtype=np.uint8).reshape(3, 4, 4, 3)
    return ArrayListing.of(pixels, np.array([0, 1, 1]), (("one", 2), ("two", 1)))


def test_names_are_packed_joined_and_taken():
    names = Names.join([Names.pack([b"a", b""]), Names.pack([]), Names.pack([b"ccc", b"dd"])])
    assert names.tolist() == [b"a", b"", b"ccc", b"dd"]
    assert len(names) == 4
    assert names[2] == b"ccc"
    assert names.take(np.array([3, 0, 3])).tolist() == [b"dd", b"a", b"dd"]
    assert Names.join([]).tolist() == []


def test_files_are_read_and_found(tmp_path: Path):
    listing = files(tmp_path)
    assert len(listing) == 3
    assert [listing.read(row) for row in range(3)] == [b"first", b"second one", b"third"]
    assert listing.place(2) == str(tmp_path / "ф" / "д.png")


def test_a_file_that_is_gone_is_named(tmp_path: Path):
    listing = files(tmp_path)
    (tmp_path / "a.png").unlink()
    with pytest.raises(TeddyError, match=r"a\.png: cannot be read \(No such file or directory\); mend or remove it"):
        listing.read(0)


def test_a_name_that_is_no_text_is_read_and_shown(tmp_path: Path):
    name = b"\xff.png"
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"odd")
    one = np.array([1])
    listing = FileListing(str(tmp_path), Names.pack([name]), one, one, one)
    assert listing.read(0) == b"odd"
    assert listing.place(0) == f"{tmp_path}/\N{REPLACEMENT CHARACTER}.png"


def test_pixels_in_memory_say_which_file_they_came_from():
    listing = array()
    assert [listing.place(row) for row in range(3)] == ["one row 0", "one row 1", "two row 0"]
    assert listing.take(np.array([2, 0])).place(0) == "two row 0"
    assert np.array_equal(listing.read(1), listing.pixels[1])


@pytest.mark.parametrize("kind", ["files", "array"])
def test_rows_are_taken_in_order_relabelled_and_pickled(tmp_path: Path, kind: str):
    listing = files(tmp_path) if kind == "files" else array()
    taken = listing.take(np.array([2, 0]))
    assert taken.labels.tolist() == [1, 0]
    assert listing.take(np.array([2, 0]), np.array([5, 6])).labels.tolist() == [5, 6]
    again = pickle.loads(pickle.dumps(taken))
    assert len(again) == 2
    for row, before in enumerate([2, 0]):
        assert np.array_equal(again.read(row), listing.read(before))
        assert again.place(row) == listing.place(before)
    assert again.fingerprint() == taken.fingerprint() != listing.fingerprint()


def test_the_fingerprint_of_files_sees_names_labels_sizes_and_times(tmp_path: Path):
    base = files(tmp_path)
    same = FileListing("/elsewhere", base.names, base.sizes, base.mtimes, base.labels)
    assert same.fingerprint() == base.fingerprint()
    changed = [
        FileListing(
            base.root, Names.pack([b"x.png", base.names[1], base.names[2]]), base.sizes, base.mtimes, base.labels
        ),
        FileListing(base.root, base.names, base.sizes + 1, base.mtimes, base.labels),
        FileListing(base.root, base.names, base.sizes, base.mtimes + 1, base.labels),
        FileListing(base.root, base.names, base.sizes, base.mtimes, base.labels[::-1]),
    ]
    assert len({listing.fingerprint() for listing in [base, *changed]}) == 5


def test_the_fingerprint_of_pixels_sees_pixels_shape_and_labels():
    base = array()
    changed = [
        ArrayListing.of(base.pixels ^ 1, base.labels, base.files),
        ArrayListing.of(base.pixels.reshape(3, 2, 8, 3), base.labels, base.files),
        ArrayListing.of(base.pixels, base.labels + 1, base.files),
    ]
    assert len({listing.fingerprint() for listing in [base, *changed]}) == 4


def test_the_kinds_are_tried_in_this_order():
    assert list(KINDS) == ["digits", "parquet", "tar", "cifar", "tiny-imagenet", "imagenet", "folder"]
    assert all(kind.summary for kind in KINDS.values())


def test_digits_are_split_the_same_way_each_time():
    catalogue = open_catalogue("digits")
    assert (catalogue.kind, catalogue.classes) == ("digits", tuple("0123456789"))
    assert catalogue.test is not None
    assert (len(catalogue.train), len(catalogue.test)) == (1438, 359)
    first = catalogue.train.read(0)
    assert isinstance(first, np.ndarray)
    assert (first.shape, first.dtype) == ((16, 16), np.uint8)
    assert catalogue.train.fingerprint() == open_catalogue("digits").train.fingerprint()
    half = open_catalogue("digits", test_share=0.5)
    assert half.test is not None
    assert abs(len(half.test) - 899) < 10


def test_a_folder_called_digits_is_opened_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        for number in range(2):
            path = tmp_path / "digits" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    assert open_catalogue("./digits").classes == ("a", "b")
    assert len(open_catalogue("digits").classes) == 10


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere/photos", "source nowhere/photos: no such folder"),
        ("digit", r"unknown source 'digit'; did you mean 'digits'\?"),
        ("xyzzy", "unknown source 'xyzzy'; known: FOLDER, digits"),
    ],
)
def test_a_source_that_is_not_there_is_an_error(source: str, message: str):
    with pytest.raises(TeddyError, match=message):
        open_catalogue(source)


def test_classes_are_numbered_as_a_file_says(tmp_path: Path):
    order = tmp_path / "order.txt"
    order.write_text("\ufeff" + "\n".join("9876543210") + "\n\n", encoding="utf-8")
    plain, turned = open_catalogue("digits"), open_catalogue("digits", class_order=order)
    assert turned.classes == tuple("9876543210")
    assert turned.test is not None
    label_of = {
        catalogue.train.place(row): int(label)
        for catalogue in (plain,)
        for row, label in enumerate(catalogue.train.labels)
    }
    common = [(turned.train.place(row), int(label)) for row, label in enumerate(turned.train.labels)]
    checked = [(label, label_of[place]) for place, label in common if place in label_of]
    assert len(checked) > 1000
    assert all(label == 9 - before for label, before in checked)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("cat\ndgo", r"order\.txt: unknown class 'dgo'; did you mean 'dog'\?"),
        ("cat\nbird", r"order\.txt: unknown class 'bird'; known: cat, dog"),
        ("cat", r"order\.txt: class 'dog' is missing; add a line"),
        ("cat\ndog\ncat", r"order\.txt: class 'cat' is there twice; remove a line"),
        (None, r"order\.txt: cannot be read \(No such file or directory\)"),
        (b"\xff\xfe", r"order\.txt: is no UTF-8 text"),
    ],
)
def test_a_class_order_of_other_classes_is_an_error(tmp_path: Path, lines: str | bytes | None, message: str):
    for name in ("cat", "dog"):
        for number in range(2):
            path = tmp_path / "photos" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    order = tmp_path / "order.txt"
    if lines is not None:
        order.write_bytes(lines.encode() if isinstance(lines, str) else lines)
    with pytest.raises(TeddyError, match=message):
        open_catalogue(str(tmp_path / "photos"), class_order=order)


def test_a_missing_class_comes_with_the_nearest_line(tmp_path: Path):
    for name in ("cat", "cats"):
        for number in range(2):
            path = tmp_path / "photos" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    (tmp_path / "order.txt").write_text("cat\n")
    with pytest.raises(TeddyError, match=r"class 'cats' is missing \(nearest there: 'cat'\); add a line"):
        open_catalogue(str(tmp_path / "photos"), class_order=tmp_path / "order.txt")


def written(*values: int | str) -> Written:
    return Written(np.array(values), lambda row: f"row {row}")


def test_numbers_without_names_are_classes_in_their_order():
    classes, train, test = number_labels(Path("x"), None, written(30, 4, 30), written(4))
    assert classes == ("4", "30")
    assert train.tolist() == [1, 0, 1]
    assert test is not None
    assert test.tolist() == [0]


def test_names_are_classes_in_sorted_order():
    classes, train, _ = number_labels(Path("x"), None, written("собака", "a cat"), None)
    assert classes == ("a cat", "собака")
    assert train.tolist() == [1, 0]


def test_two_classes_of_one_name_are_told_apart():
    classes, train, _ = number_labels(Path("x"), ["crane", "ant", "crane"], written(2, 0, 1), None)
    assert classes == ("crane (0)", "ant", "crane (2)")
    assert train.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("names", "train", "test", "message"),
    [
        (["a", "b"], written(0, 1, 2), None, "row 2: label 2 is none of the 2 classes, 0 to 1"),
        (["a", "b"], written(0, 1), written(0, -1), "row 1: label -1 is none of the 2 classes"),
        (["ant", "bee"], written("ant", "bea"), None, "row 1: unknown class 'bea'; did you mean 'bee'"),
        (None, written(0, 1), written(3), "row 0: class '3' is in the test part only"),
        (None, written(0, 0), None, "source x: needs images of two classes or more, found only '0'"),
        (["a", "b"], Written(np.zeros(0, np.int64), str), None, "source x: a part without images"),
    ],
)
def test_labels_that_do_not_fit_are_errors(names: list[str] | None, train: Written, test: Written | None, message: str):
    with pytest.raises(TeddyError, match=message):
        number_labels(Path("x"), names, train, test)
