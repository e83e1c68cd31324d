"""WebDataset's tar files."""

import gzip
import io
import json
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from teddy.data.kinds import open_catalogue
from teddy.errors import TeddyError


def picture(shade: int, form: str = "png") -> bytes:
    content = io.BytesIO()
    Image.new("L", (4, 4), shade).save(content, form)
    return content.getvalue()


Members = list[tuple[str, bytes]]


def write(path: Path, members: Members, extra: tarfile.TarInfo | None = None, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **options) as archive:  # type: ignore[call-overload]
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        if extra is not None:
            archive.addfile(extra)
    return path


def samples(labels: list[object], first: int = 0) -> Members:
    return [
        member
        for number, label in enumerate(labels, start=first)
        for member in ((f"{number:04d}.png", picture(number)), (f"{number:04d}.cls", str(label).encode()))
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "train-000000.tar", samples([2, 0, 1]))
    write(tmp_path / "train-000001.tar", samples([1, 0], first=3))
    write(tmp_path / "val-000000.tar", samples([0, 2], first=5))
    (tmp_path / "classnames.txt").write_text("a cat\nсобака\n猫\n", encoding="utf-8")
    return tmp_path


def test_images_labels_and_names_come_out_as_they_went_in(folder: Path):
    catalogue = open_catalogue(str(folder))
    assert (catalogue.kind, catalogue.classes) == ("tar", ("a cat", "собака", "猫"))
    assert catalogue.train.labels.tolist() == [2, 0, 1, 1, 0]
    assert [catalogue.train.read(row) for row in range(5)] == [picture(shade) for shade in range(5)]
    assert catalogue.train.place(3) == f"{folder}/train-000001.tar member 0003.png"
    assert catalogue.test is not None
    assert catalogue.test.labels.tolist() == [0, 2]
    assert catalogue.test.read(1) == picture(6)
    assert sorted(path.name for path in folder.iterdir()) == [
        "classnames.txt",
        "train-000000.tar",
        "train-000001.tar",
        "val-000000.tar",
    ]


def test_rows_are_taken_and_pickled(folder: Path):
    train = open_catalogue(str(folder)).train
    taken = train.take(np.array([4, 1, 4]), np.array([0, 1, 1]))
    again = pickle.loads(pickle.dumps(taken))
    assert again.labels.tolist() == [0, 1, 1]
    assert [again.read(row) for row in range(3)] == [picture(4), picture(1), picture(4)]
    assert again.place(0) == train.place(4)
    assert again.fingerprint() == taken.fingerprint() != train.fingerprint()


def test_the_fingerprint_follows_labels_names_and_times(folder: Path):
    shard = folder / "train-000001.tar"

    def fingerprint() -> str:
        os.utime(shard, ns=(10**18, 10**18))
        return open_catalogue(str(folder)).train.fingerprint()

    first = fingerprint()
    assert fingerprint() == first
    seen = {first}
    write(shard, samples([1, 2], first=3))
    seen.add(fingerprint())
    write(shard, samples([1, 2], first=4))
    seen.add(fingerprint())
    os.utime(shard, ns=(10**18, 10**18 + 1))
    seen.add(open_catalogue(str(folder)).train.fingerprint())
    assert len(seen) == 4


@pytest.mark.parametrize("form", ["jpg", "jpeg", "PNG", "webp"])
def test_images_of_every_form_in_folders_with_notes_beside(tmp_path: Path, form: str):
    members: Members = []
    for number in range(4):
        key = f"deep/{number}"
        members += [
            (f"{key}.txt", b"a caption"),
            (f"{key}.json", json.dumps({"label": number % 2, "width": 4}).encode()),
            (f"{key}.seg.png", picture(99)),
            (f"{key}.{form}", picture(number, "jpeg" if "jp" in form else form.lower())),
            (f"deep/._{number}.{form}", b"what macOS leaves behind"),
        ]
    catalogue = open_catalogue(str(write(tmp_path / "all.tar", members)))
    assert catalogue.classes == ("0", "1")
    assert catalogue.test is not None
    listings = (catalogue.train, catalogue.test)
    found = {listing.place(row): listing.read(row) for listing in listings for row in range(len(listing))}
    wanted = {f"{tmp_path}/all.tar member {name}": content for name, content in members if name.endswith(f"{form}")}
    assert found == {place: content for place, content in wanted.items() if "._" not in place and ".seg." not in place}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_in_any_script_are_read(tmp_path: Path, form: int):
    key = "/".join(["папка"] * 8) + "/x" * 10
    members = [(f"{key}{number}.{end}", content) for number in range(4) for end, content in
               (("png", picture(number)), ("cls", str(number % 2).encode()))]  # fmt: skip
    catalogue = open_catalogue(str(write(tmp_path / "train.tar", members, format=form)))
    assert catalogue.test is not None
    assert len(catalogue.train) + len(catalogue.test) == 4
    assert key in catalogue.train.place(0)


def test_labels_may_be_names(tmp_path: Path):
    write(tmp_path / "train-0.tar", samples(["собака", " a cat\n", "собака"]))
    write(tmp_path / "test-0.tar", samples(["собака"]))
    catalogue = open_catalogue(str(tmp_path))
    assert catalogue.classes == ("a cat", "собака")
    assert catalogue.train.labels.tolist() == [1, 0, 1]
    assert catalogue.test is not None
    assert catalogue.test.labels.tolist() == [1]


def test_names_as_labels_are_numbered_by_the_file_of_classes(tmp_path: Path):
    write(tmp_path / "train-0.tar", samples(["dog", "cat", "dog", "cat"]))
    (tmp_path / "classes.txt").write_text("dog\ncat\n")
    catalogue = open_catalogue(str(tmp_path))
    assert catalogue.classes == ("dog", "cat")
    shades = [[picture(shade) for shade in range(4)].index(catalogue.train.read(row)) for row in range(2)]  # type: ignore[arg-type]
    assert catalogue.train.labels.tolist() == [shade % 2 for shade in shades]


def test_class_folders_with_a_tar_beside_them_are_a_folder(tmp_path: Path):
    for name in ("train/x/0.png", "train/y/0.png", "val/x/0.png", "val/y/0.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(picture(0))
    write(tmp_path / "train.tar", samples([0, 1]))
    assert open_catalogue(str(tmp_path)).kind == "folder"


def entry(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


def cut(path: Path, length: int) -> Path:
    path.write_bytes(path.read_bytes()[:length])
    return path


def flip(path: Path, position: int) -> Path:
    content = bytearray(path.read_bytes())
    content[position] ^= 255
    path.write_bytes(content)
    return path


GOOD = samples([0, 1, 0, 1])
LAST = 512 * 2 * 7  # where the last member's header begins: every member is a header and one block
MISTAKES = {
    "no label": (lambda path: write(path, GOOD[:-1]), "member '0003.png' has no label; add '0003.cls' with its class"),
    "an empty label": (lambda path: write(path, [*GOOD[:-1], ("0003.cls", b" ")]), "'0003.png' has no label"),
    "a note without a label": (
        lambda path: write(path, [*GOOD[:-1], ("0003.json", b'{"width": 4}')]),
        "'0003.png' has no label",
    ),
    "a note that is none": (
        lambda path: write(path, [*GOOD[:-1], ("0003.json", b"{")]),
        "member '0003.json' is no text of its kind",
    ),
    "a label that is no text": (
        lambda path: write(path, [*GOOD[:-1], ("0003.cls", b"\xff")]),
        "member '0003.cls' is no text of its kind",
    ),
    "a label without its image": (
        lambda path: write(path, [*GOOD, ("0009.cls", b"1")]),
        "member '0009.cls' has no image beside it",
    ),
    "a key with two images": (
        lambda path: write(path, [*GOOD, ("0001.jpg", picture(1, "jpeg"))]),
        "key '0001' has two images",
    ),
    "an image twice": (lambda path: write(path, [*GOOD, GOOD[0]]), "key '0000' has two images"),
    "a label twice": (lambda path: write(path, [*GOOD, GOOD[1]]), "member '0000.cls' is there twice"),
    "a link": (
        lambda path: write(path, GOOD, entry("0009.png", tarfile.SYMTYPE, "/etc/passwd")),
        "member '0009.png' is no plain file",
    ),
    "a hard link": (
        lambda path: write(path, GOOD, entry("0009.png", tarfile.LNKTYPE, "0001.png")),
        "member '0009.png' is no plain file",
    ),
    "a pipe": (
        lambda path: write(path, GOOD, entry("0009.png", tarfile.FIFOTYPE)),
        "member '0009.png' is no plain file",
    ),
    "a device": (lambda path: write(path, GOOD, entry("0009.png", tarfile.CHRTYPE)), "'0009.png' is no plain file"),
    "cut in a member": (lambda path: cut(write(path, GOOD), LAST + 600), "cut short in member '0003.cls'"),
    "cut between members": (lambda path: cut(write(path, GOOD), LAST), "cut short or damaged after member '0003.png'"),
    "cut in a header": (
        lambda path: cut(write(path, GOOD), LAST + 100),
        "cut short or damaged after member '0003.png'",
    ),
    "a damaged header": (
        lambda path: flip(write(path, GOOD), 512 * 2 * 3),
        "cut short or damaged after member '0001.png'",
    ),
    "not a tar": (lambda path: path.write_text("x" * 2000), "not a whole tar file"),
    "an empty file": (lambda path: path.write_bytes(b""), "not a whole tar file"),
    "compressed": (
        lambda path: write(path, GOOD) and path.write_bytes(gzip.compress(path.read_bytes())),
        "not a whole tar file",
    ),
    "no images": (
        lambda path: write(path, [("n01440764.tar", b"x")]),
        "no images in it; a shard holds key.jpg with key.cls",
    ),
    "one class": (lambda path: write(path, samples([1, 1])), "needs images of two classes or more, found only '1'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(tmp_path: Path, mistake: str):
    make, message = MISTAKES[mistake]
    make(tmp_path / "train-000000.tar")
    with pytest.raises(TeddyError, match=message) as caught:
        open_catalogue(str(tmp_path))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_label_beyond_the_names_is_an_error(folder: Path):
    write(folder / "train-000001.tar", samples([1, 3], first=3))
    with pytest.raises(TeddyError, match=r"train-000001\.tar member 0004\.png: label 3 is none of the 3 classes"):
        open_catalogue(str(folder))


def test_a_class_of_the_test_part_alone_is_an_error(folder: Path):
    (folder / "classnames.txt").unlink()
    write(folder / "val-000000.tar", samples([7]))
    with pytest.raises(TeddyError, match=r"val-000000\.tar member 0000\.png: class '7' is in the test part only"):
        open_catalogue(str(folder))


def test_a_file_that_shrinks_or_goes_is_named(folder: Path):
    train = open_catalogue(str(folder)).train
    cut(folder / "train-000000.tar", 700)
    with pytest.raises(TeddyError, match=r"train-000000\.tar member 0001\.png: the file has become shorter"):
        train.read(1)
    (folder / "train-000000.tar").unlink()
    with pytest.raises(TeddyError, match=r"member 0000\.png: cannot be read \(No such file"):
        train.read(0)
