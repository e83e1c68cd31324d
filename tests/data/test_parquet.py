"""Parquet files as Hugging Face writes them."""

import io
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from teddy.data import parquet
from teddy.data.kinds import open_catalogue
from teddy.data.parquet import ParquetListing
from teddy.errors import TeddyError

ENCODED = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
NAMES = ["a cat", "собака", "猫"]


def png(shade: int) -> bytes:
    content = io.BytesIO()
    Image.new("L", (4, 4), shade).save(content, "png")
    return content.getvalue()


def write(
    path: Path,
    labels: list[object],
    *,
    names: list[str] | None = None,
    image: str = "image",
    label: str = "label",
    label_type: pa.DataType | None = None,
    images: pa.Array | None = None,
    rows: int = 2,
) -> Path:
    """Image i of a file has shade i; `rows` to a row group."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if images is None:
        images = pa.array([{"bytes": png(row), "path": f"{row}.png"} for row in range(len(labels))], ENCODED)
    table = pa.table({image: images, "other": ["x"] * len(labels), label: pa.array(labels, label_type)})
    if names is not None:
        features = {image: {"_type": "Image"}, label: {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=rows)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "train-00000-of-00002.parquet", [2, 0, 1, 1, 0], names=NAMES)
    write(tmp_path / "train-00001-of-00002.parquet", [1, 2, 0], names=NAMES)
    write(tmp_path / "validation-00000-of-00001.parquet", [0, 2], names=NAMES)
    return tmp_path


def test_images_labels_and_names_come_out_as_they_went_in(folder: Path):
    catalogue = open_catalogue(str(folder))
    assert (catalogue.kind, catalogue.classes) == ("parquet", tuple(NAMES))
    assert catalogue.train.labels.tolist() == [2, 0, 1, 1, 0, 1, 2, 0]
    assert catalogue.train.labels.dtype == np.int64
    assert [catalogue.train.read(row) for row in range(8)] == [png(shade) for shade in (0, 1, 2, 3, 4, 0, 1, 2)]
    assert catalogue.test is not None
    assert catalogue.test.labels.tolist() == [0, 2]
    assert catalogue.test.read(1) == png(1)


def test_a_row_is_found_by_file_and_row(folder: Path):
    train = open_catalogue(str(folder)).train
    assert train.place(4) == f"{folder}/train-00000-of-00002.parquet row 4"
    assert train.place(5) == f"{folder}/train-00001-of-00002.parquet row 0"
    assert train.take(np.array([7])).place(0) == f"{folder}/train-00001-of-00002.parquet row 2"


def test_rows_are_taken_and_pickled_without_what_is_in_memory(folder: Path):
    train = open_catalogue(str(folder)).train
    empty = len(pickle.dumps(train))
    for row in range(8):
        train.read(row)
    assert len(pickle.dumps(train)) == empty
    taken = train.take(np.array([6, 1, 6]), np.array([0, 1, 1]))
    again = pickle.loads(pickle.dumps(taken))
    assert again.labels.tolist() == [0, 1, 1]
    assert [again.read(row) for row in range(3)] == [png(1), png(1), png(1)]
    assert again.place(1) == train.place(1)
    assert again.fingerprint() == taken.fingerprint()


def test_row_groups_in_memory_stay_below_the_bound(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parquet, "CACHE_BYTES", 2 * 2 * len(png(0)) + 100)  # two row groups of two images
    train = open_catalogue(str(folder)).train
    assert isinstance(train, ParquetListing)
    opened: list[int] = []
    parquet_file = pq.ParquetFile

    def count(path: str) -> pq.ParquetFile:
        opened.append(1)
        return parquet_file(path)

    monkeypatch.setattr(pq, "ParquetFile", count)
    for row in (0, 1, 2, 3, 0, 1):
        train.read(row)
    assert len(opened) == 2
    train.read(5)  # puts out the group of rows 2 and 3, which was used least recently
    train.read(0)
    assert len(opened) == 3
    train.read(2)
    assert len(opened) == 4
    assert train.row_groups._held <= train.row_groups.cache_bytes


def test_a_forked_process_has_a_cache_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch):
    train = open_catalogue(str(folder)).train
    assert isinstance(train, ParquetListing)
    train.read(0)
    with train.row_groups._lock:  # held while the process forks
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert train.read(1) == png(1)


def test_the_fingerprint_follows_labels_and_files(folder: Path):
    def fingerprint() -> str:
        return open_catalogue(str(folder)).train.fingerprint()

    seen = {fingerprint(), fingerprint()}
    assert len(seen) == 1
    shard = write(folder / "train-00001-of-00002.parquet", [1, 2, 1], names=NAMES)
    seen.add(fingerprint())
    os.utime(shard, ns=(10**18, 10**18))
    seen.add(fingerprint())
    assert len(seen) == 3
    train = open_catalogue(str(folder)).train
    assert train.take(np.arange(8)[::-1]).fingerprint() != train.fingerprint()


@pytest.mark.parametrize("image", ["image", "img"])
@pytest.mark.parametrize("label", ["label", "labels", "fine_label"])
def test_columns_go_by_several_names(tmp_path: Path, image: str, label: str):
    write(tmp_path / "data" / "train.parquet", [0, 1, 0, 1], names=["x", "y"], image=image, label=label)
    catalogue = open_catalogue(str(tmp_path))
    assert catalogue.classes == ("x", "y")
    assert catalogue.test is not None
    assert len(catalogue.train) + len(catalogue.test) == 4


def test_labels_without_names_are_their_own(tmp_path: Path):
    write(tmp_path / "train-0.parquet", [30, 4, 30, 4], label_type=pa.int8())
    write(tmp_path / "test-0.parquet", [4])
    catalogue = open_catalogue(str(tmp_path))
    assert catalogue.classes == ("4", "30")
    assert catalogue.train.labels.tolist() == [1, 0, 1, 0]
    assert catalogue.test is not None
    assert catalogue.test.labels.tolist() == [0]


@pytest.mark.parametrize("label_type", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_labels_may_be_names(tmp_path: Path, label_type: pa.DataType):
    write(tmp_path / "train-0.parquet", ["собака", "a cat", "собака"], label_type=label_type)
    write(tmp_path / "test-0.parquet", ["собака"], label_type=label_type)
    catalogue = open_catalogue(str(tmp_path))
    assert catalogue.classes == ("a cat", "собака")
    assert catalogue.train.labels.tolist() == [1, 0, 1]
    assert catalogue.test is not None
    assert catalogue.test.labels.tolist() == [1]


def test_images_may_be_plain_bytes(tmp_path: Path):
    images = pa.array([png(3), png(4)], pa.binary())
    write(tmp_path / "train-0.parquet", [0, 1], images=images)
    write(tmp_path / "val-0.parquet", [0, 1], images=images)
    assert open_catalogue(str(tmp_path)).train.read(1) == png(4)


def test_one_file_is_split(tmp_path: Path):
    catalogue = open_catalogue(str(write(tmp_path / "all.parquet", [0, 1] * 5, names=["x", "y"])))
    assert catalogue.test is not None
    assert (len(catalogue.train), len(catalogue.test)) == (8, 2)


def test_val_comes_before_test_whose_labels_may_be_hidden(tmp_path: Path):
    for part, labels in {"train": [0, 1], "validation": [1, 0, 0], "test": [-1, -1]}.items():
        write(tmp_path / f"{part}-00000-of-00001.parquet", labels, names=["x", "y"])
    catalogue = open_catalogue(str(tmp_path))
    assert catalogue.test is not None
    assert catalogue.test.labels.tolist() == [1, 0, 0]


def test_class_folders_with_a_table_beside_them_are_a_folder(tmp_path: Path):
    for name in ("x", "y"):
        for row in range(2):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{row}.png").write_bytes(png(row))
    write(tmp_path / "metadata.parquet", [0, 1])
    assert open_catalogue(str(tmp_path)).kind == "folder"


MISTAKES = {
    "a missing file": (
        lambda root: (root / "train-00000-of-00002.parquet").unlink(),
        "'train-00000-of-00002.parquet' is missing; fetch it as well",
    ),
    "no training part": (
        lambda root: [path.unlink() for path in root.glob("train*")] + [write(root / "test-0.parquet", [0])],
        "no file of a training part, such as train-0.parquet",
    ),
    "a damaged file": (
        lambda root: (root / "train-00001-of-00002.parquet").write_bytes(b"PAR1 and nothing else"),
        "train-00001-of-00002.parquet: not readable as Parquet",
    ),
    "an empty file": (
        lambda root: (root / "train-00001-of-00002.parquet").write_bytes(b""),
        "train-00001-of-00002.parquet: not readable as Parquet",
    ),
    "no label": (
        lambda root: write(root / "train-00001-of-00002.parquet", [1, None]),
        "train-00001-of-00002.parquet row 1: has no label",
    ),
    "a label out of range": (
        lambda root: write(root / "train-00001-of-00002.parquet", [0, 1, 3], names=NAMES),
        "train-00001-of-00002.parquet row 2: label 3 is none of the 3 classes, 0 to 2",
    ),
    "no column of labels": (
        lambda root: write(root / "train-00000-of-00002.parquet", [0, 1], label="kind"),
        r"no column of labels; name one 'label' \(there are: image, other, kind\)",
    ),
    "no column of images": (
        lambda root: write(root / "train-00000-of-00002.parquet", [0, 1], image="picture"),
        "no column of images; name one 'image'",
    ),
    "other columns": (
        lambda root: write(root / "train-00001-of-00002.parquet", [0, 1], image="img"),
        "train-00001-of-00002.parquet: has other columns than train-00000-of-00002.parquet",
    ),
    "images that are none": (
        lambda root: write(root / "train-00000-of-00002.parquet", [0, 1], images=pa.array(["a", "b"])),
        "column 'image' holds string; encoded images are needed, as bytes",
    ),
    "labels that are none": (
        lambda root: write(root / "train-00000-of-00002.parquet", [0.5, 1.5]),
        "column 'label' holds double; numbers or names of classes are needed",
    ),
    "no rows": (
        lambda root: write(root / "validation-00000-of-00001.parquet", [], names=NAMES, label_type=pa.int64()),
        "a part without images",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(folder: Path, mistake: str):
    make, message = MISTAKES[mistake]
    make(folder)
    with pytest.raises(TeddyError, match=message) as caught:
        open_catalogue(str(folder))
    assert "\n" not in str(caught.value)


def test_an_image_that_is_only_a_name_is_an_error(tmp_path: Path):
    images = pa.array([{"bytes": None, "path": "x.png"}] * 2, ENCODED)
    write(tmp_path / "train-0.parquet", [0, 1], images=images)
    write(tmp_path / "val-0.parquet", [0, 1])
    with pytest.raises(TeddyError, match=r"train-0\.parquet row 1: holds no image, only its name"):
        open_catalogue(str(tmp_path)).train.read(1)


def test_a_file_that_is_gone_or_cut_is_named(folder: Path):
    train = open_catalogue(str(folder)).train
    (folder / "train-00000-of-00002.parquet").unlink()
    with pytest.raises(TeddyError, match=r"train-00000-of-00002\.parquet: not readable as Parquet"):
        train.read(0)
