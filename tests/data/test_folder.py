"""Folders of images, as people have them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from teddy.data.source import open_source
from teddy.data.split import split_rows
from teddy.errors import TeddyError


def save(
    path: Path, colour: object = "red", *, size: tuple[int, int] = (12, 12), mode: str = "RGB", **options: object
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path, **options)  # type: ignore[arg-type]


def fill(root: Path, per_class: int = 5, **options: object) -> None:
    for name in ("a cat", "собака"):
        for number in range(per_class):
            save(root / name / f"{number}.png", **options)


def test_one_folder_is_split_the_same_way_each_time(tmp_path: Path):
    fill(tmp_path, per_class=10)
    first, second = (open_source(str(tmp_path), image_size=None, test_share=0.2) for _ in range(2))
    assert first.classes == ("a cat", "собака")
    assert first.class_counts() == [8, 8]
    assert len(first.test) == 4
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize("name", ["val", "test"])
def test_a_split_that_is_there_is_kept(tmp_path: Path, name: str):
    fill(tmp_path / "train", per_class=3)
    fill(tmp_path / name, per_class=2)
    source = open_source(str(tmp_path), image_size=None, test_share=0.2)
    assert (len(source.train), len(source.test)) == (6, 4)


def test_a_class_of_the_test_part_alone_is_an_error(tmp_path: Path):
    fill(tmp_path / "train")
    fill(tmp_path / "val")
    save(tmp_path / "val" / "owl" / "0.png")
    with pytest.raises(TeddyError, match="'owl' is in the test part only"):
        open_source(str(tmp_path), image_size=None, test_share=0.2)


def test_images_in_nested_folders_count_and_other_files_do_not(tmp_path: Path):
    fill(tmp_path, per_class=4)
    save(tmp_path / "a cat" / "more" / "deep.JPEG")
    (tmp_path / "a cat" / "notes.txt").write_text("x")
    (tmp_path / "a cat" / ".hidden.png").write_text("x")
    source = open_source(str(tmp_path), image_size=None, test_share=0.5)
    assert len(source.train) + len(source.test) == 9


def test_images_of_one_size_keep_it_and_others_are_brought_to_64(tmp_path: Path):
    fill(tmp_path, size=(20, 20))
    assert open_source(str(tmp_path), image_size=None, test_share=0.2).image_size == 20
    save(tmp_path / "a cat" / "wide.png", size=(90, 40))
    assert open_source(str(tmp_path), image_size=None, test_share=0.2).image_size == 64
    assert open_source(str(tmp_path), image_size=16, test_share=0.2).image_size == 16


def test_grey_images_stay_grey_unless_one_has_colour(tmp_path: Path):
    fill(tmp_path, mode="L", colour=100)
    assert open_source(str(tmp_path), image_size=None, test_share=0.2).channels == 1
    save(tmp_path / "a cat" / "colour.png")
    assert open_source(str(tmp_path), image_size=None, test_share=0.2).channels == 3


@pytest.mark.parametrize(
    ("mode", "colour", "suffix", "expected"),
    [
        ("RGB", (255, 0, 0), "png", (255, 0, 0)),
        ("P", 0, "gif", (0, 0, 0)),
        ("RGBA", (255, 0, 0, 0), "png", (255, 255, 255)),
        ("RGBA", (255, 0, 0, 255), "png", (255, 0, 0)),
        ("LA", (7, 0), "png", (255, 255, 255)),
        ("CMYK", (0, 0, 0, 0), "tif", (255, 255, 255)),
        ("I;16", 65535, "png", (255, 255, 255)),
        ("I;16", 257 * 100, "png", (100, 100, 100)),
        ("1", 1, "png", (255, 255, 255)),
    ],
)
def test_every_mode_comes_out_as_the_colour_one_sees(
    tmp_path: Path, mode: str, colour: object, suffix: str, expected: tuple[int, ...]
):
    fill(tmp_path)  # colour images beside it, so that all are read as RGB
    for number in range(4):
        save(tmp_path / "odd" / f"{number}.{suffix}", colour, mode=mode)
    source = open_source(str(tmp_path), image_size=None, test_share=0.2)
    odd = source.train.pixels[source.train.labels == source.classes.index("odd")]
    assert odd[0, :, 5, 5].tolist() == list(expected)


def test_exif_orientation_is_applied(tmp_path: Path):
    fill(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise to display
    picture = np.zeros((12, 12, 3), dtype=np.uint8)
    picture[:6] = 255  # the stored top half, which is the right half when displayed
    for number in range(2):
        path = tmp_path / "turned" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(picture).save(path, exif=exif)
    source = open_source(str(tmp_path), image_size=None, test_share=0.5)
    turned = source.train.pixels[source.train.labels == source.classes.index("turned")][0, 0]
    assert turned[:, :6].max() == 0
    assert turned[:, 6:].min() == 255


def test_the_middle_of_a_wide_image_is_kept(tmp_path: Path):
    fill(tmp_path)
    picture = np.zeros((12, 36, 3), dtype=np.uint8)
    picture[:, 12:24] = 255
    for number in range(2):
        path = tmp_path / "wide" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(picture).save(path)
    source = open_source(str(tmp_path), image_size=12, test_share=0.5)
    wide = source.train.pixels[source.train.labels == source.classes.index("wide")]
    assert wide.min() == 255


def test_every_bad_file_is_counted_and_the_first_one_named(tmp_path: Path):
    fill(tmp_path)
    (tmp_path / "a cat" / "bad.png").write_text("not an image")
    (tmp_path / "собака" / "empty.jpg").touch()
    with pytest.raises(TeddyError, match=r"bad\.png, .*empty\.jpg: not readable as an image \(2 of 12\)"):
        open_source(str(tmp_path), image_size=None, test_share=0.2)


def test_a_truncated_image_is_bad(tmp_path: Path):
    fill(tmp_path)
    path = tmp_path / "a cat" / "cut.jpg"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(TeddyError, match=r"cut\.jpg: not readable"):
        open_source(str(tmp_path), image_size=None, test_share=0.2)


def test_the_split_takes_the_same_share_of_every_class():
    labels = torch.tensor([0] * 50 + [1] * 10 + [2] * 2)
    train, test = split_rows(labels, 0.2)
    assert torch.bincount(labels[test]).tolist() == [10, 2, 1]
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(62))


def test_digits_are_all_there():
    source = open_source("digits")
    assert source.classes == tuple("0123456789")
    assert len(source.train) + len(source.test) == 1797
    assert source.train.pixels.shape[1:] == (1, 16, 16)
    assert open_source("digits", image_size=8).image_size == 8
    assert min(source.class_counts()) > 130
