"""The set's folder: what is written is what is read, and it explains itself."""

import json
import pickle
import struct
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from safetensors.torch import save

from teddy.data.augment import draw_change
from teddy.data.loaders import Loader
from teddy.data.preprocessing import Preprocessing
from teddy.data.source import Images, Task
from teddy.distilled import (
    DESCRIPTION,
    LABELS,
    DistilledSet,
    image_names,
    is_inside,
    read_description,
    read_distilled,
    sha256,
    write_distilled,
)
from teddy.errors import TeddyError
from teddy.parsing import parse_config
from teddy.stored_labels import FILE as STORED
from teddy.stored_labels import Form, record


def make_set(
    folder: Path,
    classes: tuple[str, ...] = ("cat", "dog", "emu"),
    *,
    channels: int = 3,
    per_class: int = 2,
    seed: int = 0,
) -> Path:
    """A valid set of random 8 × 8 images."""
    generator = torch.Generator().manual_seed(seed)
    num_images = per_class * len(classes)
    pixels = torch.randint(0, 256, (num_images, channels, 8, 8), generator=generator).to(torch.uint8)
    images = Images(pixels, torch.arange(len(classes)).repeat_interleave(per_class))
    logits = torch.randn(num_images, len(classes), generator=generator)
    config = parse_config({"data": {"source": "/home/somebody/pets"}, "ipc": per_class})
    preprocessing = Preprocessing((0.4, 0.5, 0.6)[:channels], (0.2, 0.25, 0.3)[:channels])
    loader = Loader(
        images, preprocessing, Task(len(classes), channels, 8), batch_size=4, seed=0, cutmix_alpha=1.0,
        change=partial(draw_change, crop=(0.5, 1.0), roll=1), label=lambda seen, _: logits[: len(seen)] + seen.mean(),
    )  # fmt: skip
    stored = save(record(loader, Form(2, min(2, len(classes) - 1)), 4.0))
    write_distilled(folder, config, images, logits, classes, preprocessing, extra={STORED: stored})
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_set(tmp_path / "set")


def tell(folder: Path, **changes: object) -> None:
    """Change what the description states."""
    path = folder / DESCRIPTION
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def seal(folder: Path) -> None:
    """State the checksums that the files have now, as somebody who tampers with them would."""
    path = folder / DESCRIPTION
    description = json.loads(path.read_text(encoding="utf-8"))
    for file in description["images"] + description["other_files"]:
        file["sha256"] = sha256((folder / file["name"]).read_bytes())
    path.write_text(json.dumps(description), encoding="utf-8")


def test_where_the_source_lay_on_disk_is_not_told(folder: Path):
    text = (folder / "dataset.json").read_text()
    assert '"pets"' in text
    assert "somebody" not in text


def test_stored_labels_are_replayed_with_their_augmentations(folder: Path):
    distilled = read_distilled(folder, temperature=4.0)
    assert distilled.stored is not None
    first, second, third = (list(distilled.training_batches(99, epoch)) for epoch in range(3))
    assert [len(images) for images, _ in first] == [3, 3]
    assert torch.equal(first[0][0], third[0][0])  # two epochs were stored
    assert not torch.equal(first[0][0], second[0][0])
    plain = {tuple(image.flatten().tolist()) for image, _ in distilled}
    assert not plain & {tuple(image.flatten().tolist()) for images, _ in first for image in images}
    for _, labels in first:
        torch.testing.assert_close(labels.sum(1), torch.ones(3))


@pytest.mark.parametrize("channels", [1, 3])
def test_what_is_written_is_read(channels: int, tmp_path: Path):
    make_set(tmp_path / "set", channels=channels)
    distilled = read_distilled(tmp_path / "set")
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(
        distilled.images.pixels, torch.randint(0, 256, (6, channels, 8, 8), generator=generator).to(torch.uint8)
    )
    assert torch.equal(distilled.logits, torch.randn(6, 3, generator=generator))
    assert distilled.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert distilled.classes == ("cat", "dog", "emu")
    image, label = distilled[3]
    torch.testing.assert_close(image, distilled.preprocessing.normalise(distilled.images.pixels[3]))
    torch.testing.assert_close(label, distilled.logits[3].softmax(0))


def test_the_description_tells_everything(folder: Path):
    told = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    assert (told["format"], told["source"], told["method"], told["ipc"]) == (2, "pets", "teddy", 2)
    assert told["preprocessing"] == {
        "image_size": 8, "channels": 3, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3], "value_range": [0, 1],
        "interpolation": "bicubic; shorter side to size, middle cut out",
    }  # fmt: skip
    assert [(image["name"], image["label"]) for image in told["images"]][1:3] == [
        ("images/cat/00001.png", 0),
        ("images/dog/00000.png", 1),
    ]
    assert told["config"]["method"]["iterations"] == 4000
    assert {"teddy", "torch", "python"} <= set(told["versions"])
    on_disk = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert on_disk == set(read_description(folder).checksums) | {DESCRIPTION}
    assert {LABELS, STORED} < on_disk


def test_the_same_set_has_the_same_bytes_everywhere(folder: Path, tmp_path: Path):
    again = make_set(tmp_path / "again")
    for path in folder.rglob("*.*"):
        assert path.read_bytes() == (again / path.relative_to(folder)).read_bytes()


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("teddy.distilled.folder.as_json", full)
    with pytest.raises(OSError, match="No space"):
        make_set(tmp_path / "set")
    assert list(tmp_path.iterdir()) == []


def test_names_that_no_file_system_takes_are_cleaned(tmp_path: Path):
    classes = ("Ä/ö", "..", "a:b\\c", "con\ntrol", "猫", "x" * 300)
    distilled = read_distilled(make_set(tmp_path / "set", classes))
    assert distilled.classes == classes
    assert {path.name for path in (tmp_path / "set" / "images").iterdir()} >= {"00000_Ä_ö", "00004_猫"}


def test_images_are_numbered_in_their_class():
    assert image_names(torch.tensor([1, 0, 1]), ["a", "b"]) == ["b/00000.png", "a/00000.png", "b/00001.png"]


def test_training_batches_repeat_themselves_and_cover_the_set(folder: Path):
    distilled = read_distilled(folder, temperature=3.0)
    distilled.stored = None

    def epoch(number: int, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(distilled.training_batches(4, number, seed))

    first, again, other = epoch(0), epoch(0), epoch(1)
    assert [len(images) for images, _ in first] == [3, 3]
    assert all(torch.equal(a, b) for one, two in zip(first, again, strict=True) for a, b in zip(one, two, strict=True))
    assert not torch.equal(first[0][0], other[0][0])
    assert not torch.equal(first[0][0], epoch(0, seed=1)[0][0])
    everything = {
        tuple(image.flatten().tolist()): label
        for images, labels in first
        for image, label in zip(images, labels, strict=True)
    }
    for image, label in distilled:
        torch.testing.assert_close(everything[tuple(image.flatten().tolist())], label)
    with pytest.raises(TeddyError, match="batch_size: is 0"):
        next(distilled.training_batches(0, 0))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "LA", "CMYK", "I"])
def test_evaluation_transform_takes_any_picture(mode: str, channels: int, tmp_path: Path):
    distilled = read_distilled(make_set(tmp_path / "set", channels=channels))
    noise = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).convert(mode)
    image = distilled.evaluation_transform(picture)
    assert (image.shape, image.dtype) == ((channels, 8, 8), torch.float32)
    assert image.isfinite().all()


def test_evaluation_transform_is_what_pillow_does(folder: Path):
    distilled = read_distilled(folder)
    noise = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    fitted = ImageOps.fit(Image.fromarray(noise), (8, 8), Image.Resampling.BICUBIC)
    expected = distilled.preprocessing.normalise(torch.from_numpy(np.array(fitted)).permute(2, 0, 1))
    transform = pickle.loads(pickle.dumps(distilled.evaluation_transform))  # as a loader's workers get it
    assert torch.equal(transform(Image.fromarray(noise)), expected)
    assert torch.equal(transform(torch.from_numpy(noise).permute(2, 0, 1)), expected)
    assert torch.equal(transform(distilled.images.pixels[2]), distilled[2][0])
    assert transform(torch.from_numpy(noise[:, :, 0])).shape == (3, 8, 8)
    with pytest.raises(TeddyError, match="evaluation_transform: takes"):
        transform(torch.rand(3, 8, 8))


def hostile(folder: Path, key: str, **changes: object) -> dict[str, object]:
    told = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))[key]
    return {key: [told[0] | changes, *told[1:]]} if isinstance(told, list) else {key: told | changes}


@pytest.mark.parametrize(
    ("key", "changes", "message"),
    [
        ("images", {"name": "../../x.png"}, "no plain path"),
        ("images", {"name": "/etc/passwd"}, "no plain path"),
        ("images", {"name": "C:/x.png"}, "no plain path"),
        ("images", {"name": "images\\x.png"}, "no plain path"),
        ("images", {"name": "images/dog/00000.png"}, "same name"),
        ("images", {"name": "images/cat/00009.png"}, "is missing"),
        ("images", {"name": LABELS + "x"}, "no PNG"),
        ("images", {"label": 3}, "beyond the 3 classes"),
        ("images", {"label": -1}, "greater than or equal to 0"),
        ("images", {"label": 1}, "other labels"),
        ("images", {"extra": 1}, "not permitted"),
        ("images", {"sha256": "0" * 64}, "another checksum"),
        ("preprocessing", {"std": [0.1, 0.1, 0.0]}, "greater than"),
        ("preprocessing", {"mean": [float("nan")] * 3}, "finite"),
        ("preprocessing", {"mean": [0.1]}, "1 and 3 values for 3 channels"),
        ("preprocessing", {"image_size": 4097}, "less than or equal to 4096"),
        ("preprocessing", {"image_size": 16}, "no PNG image of 16 × 16"),
        ("preprocessing", {"channels": 1, "mean": [0.1], "std": [0.1]}, "no PNG image of 8 × 8 pixels in mode L"),
        ("config", {"x": "y" * 2**20}, "config: is larger"),
        ("config", {"x": float("inf")}, "compliant"),
    ],
)
def test_a_lying_description_is_refused(key: str, changes: dict[str, object], message: str, folder: Path):
    tell(folder, **hostile(folder, key, **changes))
    with pytest.raises(TeddyError, match=message) as refused:
        read_distilled(folder)
    assert str(folder) in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 1}, "format: input should be 2"),
        ({"classes": ["cat", "cat", "emu"]}, "same name"),
        ({"classes": ["cat", "dog", "emu", "fox"]}, "not the size of 6 × 4 labels"),
        ({"images": []}, "at least 1 item"),
        ({"other_files": []}, "labels.safetensors is missing"),
        ({"unknown": 1}, "not permitted"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(changes: dict[str, object], message: str, folder: Path):
    tell(folder, **changes)
    with pytest.raises(TeddyError, match=message):
        read_distilled(folder)


def test_a_description_of_giant_size_is_not_even_parsed(folder: Path):
    with (folder / DESCRIPTION).open("r+b") as file:
        file.truncate(2**26 + 1)  # sparse
    with pytest.raises(TeddyError, match="larger than"):
        read_distilled(folder)


def test_a_million_mistakes_are_one_line(folder: Path):
    tell(folder, **{f"k{number}": 0 for number in range(200_000)})
    with pytest.raises(TeddyError, match="200000 mistakes"):
        read_distilled(folder)


def test_logits_must_be_finite(folder: Path):
    content = bytearray((folder / LABELS).read_bytes())
    content[-4:] = b"\x00\x00\xc0\x7f"  # NaN
    (folder / LABELS).write_bytes(content)
    with pytest.raises(TeddyError, match="another checksum"):
        read_distilled(folder)
    seal(folder)
    with pytest.raises(TeddyError, match="no finite numbers"):
        read_distilled(folder)


@pytest.mark.parametrize(
    ("key", "lie", "message"),
    [
        ("logits", {"shape": [3, 6]}, "'logits' is not F32 of shape"),
        ("logits", {"dtype": "I32"}, "'logits' is not F32 of shape"),
        ("labels", {"data_offsets": [72, 120]}, "not readable as safetensors"),
        ("labels", {"data_offsets": [0, 2**64]}, "'labels' is not I64 of shape"),
        ("other", {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, "not permitted"),
    ],
)
def test_a_lying_tensor_header_is_refused(key: str, lie: dict[str, object], message: str, folder: Path):
    content = (folder / LABELS).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    text = json.dumps(header | {key: header.get(key, {}) | lie}).encode()
    (folder / LABELS).write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    seal(folder)
    with pytest.raises(TeddyError, match=message):
        read_distilled(folder)


@pytest.mark.parametrize("side", [1, 7, 2**15])
def test_a_second_header_in_a_png_is_refused(side: int, folder: Path):
    path = folder / "images" / "cat" / "00000.png"
    png = path.read_bytes()
    chunk = b"IHDR" + struct.pack(">II", side, side) + png[24:29]
    path.write_bytes(png[:33] + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + png[33:])
    seal(folder)
    with pytest.raises(TeddyError, match=r"00000\.png: not readable as a PNG"):
        read_distilled(folder)


def test_links_stay_inside(folder: Path, tmp_path: Path):
    image = folder / "images" / "cat" / "00000.png"
    image.rename(folder / "images" / "cat" / "elsewhere.png")
    image.symlink_to("elsewhere.png")
    read_distilled(folder)
    (folder / "images" / "cat" / "elsewhere.png").rename(tmp_path / "outside.png")
    image.unlink()
    image.symlink_to(tmp_path / "outside.png")
    with pytest.raises(TeddyError, match="outside of the set"):
        read_distilled(folder)
    image.unlink()
    image.symlink_to(image)
    with pytest.raises(TeddyError, match=r"00000\.png"):
        read_distilled(folder)


@pytest.mark.parametrize("name", ["a", "a/b.png", "ä/猫 1.png", "a../b", "...", "-x"])
def test_plain_paths_are_inside(name: str):
    assert is_inside(name)


@pytest.mark.parametrize(
    "name", ["", "/", "/a", "a/", "a//b", "./a", "a/..", "..", "a\\b", "c:a", "a\0b", "a\nb", DESCRIPTION]
)
def test_other_paths_are_not(name: str):
    assert not is_inside(name)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_temperature_is_positive(temperature: float, folder: Path):
    with pytest.raises(TeddyError, match="temperature: is"):
        read_distilled(folder, temperature)


def test_no_set_is_named(tmp_path: Path):
    with pytest.raises(TeddyError, match=r"not a distilled set \(no dataset.json in it\)"):
        read_distilled(tmp_path)


def test_a_set_is_a_data_set(folder: Path):
    distilled: DistilledSet = read_distilled(folder)
    images, labels = next(iter(torch.utils.data.DataLoader(distilled, batch_size=6)))
    assert (images.shape, labels.shape) == ((6, 3, 8, 8), (6, 3))
