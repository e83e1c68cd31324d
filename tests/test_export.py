"""Exports, read back by the programs they are for."""

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from pyarrow import parquet
from safetensors.torch import load_file
from test_distilled import make_set, tell
from torchvision.datasets import ImageFolder

from teddy.distilled import read_distilled, sha256
from teddy.errors import TeddyError
from teddy.exporting import FORMATS, export, folder_names
from teddy.students import ROWS

CLASSES = {
    "plain": ("cat", "dog", "emu"),
    "not alphabetical": ("zebra", "ant", "Moth"),
    "numbers": ("9", "10", "a b", "1e3"),
    "scripts": ("Ä/ö", "кот", "猫", "a\nb", "é"),
    "words of splits": ("test", "val", "train 2", "dev", "cat"),
    "signs": ("[x]", "a#b", "100%", "__hidden", "a'b\"c", "{d}"),
}


@pytest.fixture(params=CLASSES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make_set(tmp_path / "set", CLASSES[request.param])


@pytest.fixture
def load_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Hugging Face's reader, offline, with a cache of its own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()

    def load(*given: str, **named: str) -> Any:
        parts = datasets.load_dataset(*given, **named, cache_dir=str(tmp_path / "cache"))
        assert list(parts) == ["train"]
        return parts["train"]

    return load


def pixels_of(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def evaluated_run(folder: Path) -> Path:
    make_set(folder / "distilled")
    students = {
        row: {"0": {"accuracy": 60.0 + number, "curve": []}, "1": {"accuracy": 62.0 + number, "curve": []}}
        for number, row in enumerate(ROWS)
    }
    (folder / "evaluation").mkdir()
    (folder / "evaluation" / "results.json").write_text(json.dumps({"convnet-w64-bn": students}))
    return folder


def test_torchvision_reads_the_image_folder(folder: Path, tmp_path: Path):
    distilled = read_distilled(folder)
    read = ImageFolder(str(export(folder, "imagefolder", tmp_path / "out") / "train"))
    assert len(read) == len(distilled)
    assert read.targets == distilled.labels.tolist()
    assert read.classes == folder_names(distilled.classes)
    for row, (image, label) in enumerate(read):
        assert torch.equal(pixels_of(image), distilled.images.pixels[row])
        assert label == distilled.labels[row]
    assert torch.equal(load_file(tmp_path / "out" / "labels.safetensors")["logits"], distilled.logits)


@pytest.mark.parametrize("by_name", [True, False])
def test_datasets_reads_the_image_folder(by_name: bool, folder: Path, tmp_path: Path, load_dataset: Callable[..., Any]):
    distilled = read_distilled(folder)
    out = str(export(folder, "imagefolder", tmp_path / "out"))
    read = load_dataset("imagefolder", data_dir=out) if by_name else load_dataset(out)
    assert read.features["label"].names == folder_names(distilled.classes)
    assert read["label"][:] == distilled.labels.tolist()
    for row in range(len(distilled)):
        assert torch.equal(pixels_of(read[row]["image"]), distilled.images.pixels[row])


@pytest.mark.parametrize("card", [True, False])
def test_datasets_reads_the_hugging_face_form(
    card: bool, folder: Path, tmp_path: Path, load_dataset: Callable[..., Any]
):
    datasets = pytest.importorskip("datasets")
    distilled = read_distilled(folder)
    out = export(folder, "huggingface", tmp_path / "out")
    if not card:
        (out / "README.md").unlink()
    read = load_dataset(str(out))
    assert isinstance(read.features["image"], datasets.Image)
    assert isinstance(read.features["label"], datasets.ClassLabel)
    assert read.features["label"].names == list(distilled.classes)
    assert read["label"][:] == distilled.labels.tolist()
    torch.testing.assert_close(torch.tensor(read["soft_label"][:]), distilled.logits.softmax(1), rtol=0, atol=0)
    for row in range(len(distilled)):
        assert torch.equal(pixels_of(read[row]["image"]), distilled.images.pixels[row])


def test_images_keep_their_bytes(tmp_path: Path):
    folder = make_set(tmp_path / "set")
    export(folder, "imagefolder", tmp_path / "out")
    for path in (folder / "images").rglob("*.png"):
        assert path.read_bytes() == (tmp_path / "out" / "train" / path.relative_to(folder / "images")).read_bytes()


def test_tensors_hold_everything(folder: Path, tmp_path: Path):
    distilled = read_distilled(folder)
    out = export(folder, "tensors", tmp_path / "out")
    tensors = load_file(out / "distilled.safetensors")
    assert torch.equal(tensors["images"], distilled.images.pixels)
    assert torch.equal(tensors["labels"], distilled.labels)
    assert torch.equal(tensors["logits"], distilled.logits)
    told = json.loads((out / "description.json").read_text(encoding="utf-8"))
    assert told["classes"] == list(distilled.classes)
    assert told["preprocessing"]["mean"] == list(distilled.preprocessing.mean)
    assert told["tensors"]["images"] == ["uint8", len(distilled), 3, 8, 8]
    assert told["sha256"] == {"distilled.safetensors": sha256((out / "distilled.safetensors").read_bytes())}


def test_folder_names_are_numbered_only_where_they_must_be():
    assert folder_names(("a b", "c")) == ["a b", "c"]
    assert folder_names(("10", "9")) == ["10", "9"]
    assert folder_names(("9", "10")) == ["00000_9", "00001_10"]
    assert folder_names(("cat", "test tube")) == ["00000_cat", "00001"]
    assert folder_names(("cat", "protest")) == ["cat", "protest"]


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_has_a_card(form: str, tmp_path: Path):
    out = export(evaluated_run(tmp_path / "run"), form, tmp_path / "out")
    card = (out / "README.md").read_text(encoding="utf-8")
    front_matter = yaml.safe_load(card.split("---\n")[1])
    assert front_matter["license"] == "unknown"
    assert front_matter["task_categories"] == ["image-classification"]
    assert front_matter["size_categories"] == ["n<1K"]
    num_bytes = sum(path.stat().st_size for path in out.rglob("*") if path.is_file() and path.name != "README.md")
    for part in (
        "fill in",
        "| source | pets |",
        "| images | 6, 8 × 8 pixels, colour |",
        f"| size | {num_bytes} bytes |",
        "method teddy, 2 images per class (IPC), teachers of network resnet18",
        "teddy distill pets --ipc 2 --method teddy",
        "iterations: 4000",
        "| distilled | 61.0 ± 1.4 | 2 | -1.0 ± 1.4 |",
        "| random control | 62.0 ± 1.4 | 2 |  |",
        "mean [0.4, 0.5, 0.6] and standard deviation [0.2, 0.25, 0.3]",
        '["cat", "dog", "emu"]',
    ):
        assert part in card
    assert "not evaluated" not in card
    assert "/home/somebody" not in card


def test_a_set_on_its_own_says_that_it_was_not_evaluated(tmp_path: Path):
    out = export(make_set(tmp_path / "set"), "tensors", tmp_path / "out")
    assert "It was not evaluated" in (out / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", FORMATS)
def test_a_strangers_words_stay_on_their_line(form: str, tmp_path: Path):
    folder = make_set(tmp_path / "set", ("a\n---\nb", "```", "| x |"))
    config = {"pool": 3, "method": {"a\n```": "b\n```\n# owned", "c": "d " * 200}}
    tell(folder, source="x\n---\n# owned | `$(id)`", method="y\n```\nz", config=config, versions={"teddy": []})
    out = export(folder, form, tmp_path / "out")
    lines = (out / "README.md").read_text(encoding="utf-8").splitlines()
    assert lines.count("---") == 2
    assert not any(line.startswith("# owned") for line in lines)
    assert len([line for line in lines if line.startswith("```")]) % 2 == 0
    assert yaml.safe_load("\n".join(lines[1 : lines.index("---", 1)]))["pretty_name"].startswith("x\n---")


def test_unreadable_results_are_named(tmp_path: Path):
    run = evaluated_run(tmp_path / "run")
    (run / "evaluation" / "results.json").write_text('{"convnet": 3}')
    with pytest.raises(TeddyError, match=r"results\.json: not readable as results"):
        export(run, "tensors", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_form_is_named(tmp_path: Path):
    with pytest.raises(TeddyError, match="unknown format 'imagefolders'; did you mean 'imagefolder'"):
        export(make_set(tmp_path / "set"), "imagefolders", tmp_path / "out")


def test_what_is_there_is_not_overwritten(tmp_path: Path):
    folder = make_set(tmp_path / "set")
    (tmp_path / "out").mkdir()
    export(folder, "tensors", tmp_path / "out")
    with pytest.raises(TeddyError, match="holds files already"):
        export(folder, "tensors", tmp_path / "out")
    with pytest.raises(TeddyError, match="holds files already"):
        export(folder, "tensors", tmp_path / "out" / "README.md")
    with pytest.raises(TeddyError, match="lies inside the set"):
        export(folder, "tensors", folder / "out")
    with pytest.raises(TeddyError, match="cannot be written"):
        export(folder, "tensors", tmp_path / "out" / "README.md" / "out")


@pytest.mark.parametrize("form", FORMATS)
def test_a_full_disk_leaves_nothing_behind(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = make_set(tmp_path / "set")
    before = sorted(tmp_path.rglob("*"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TeddyError, match="no space left on the device; nothing was left behind"):
        export(folder, form, tmp_path / "new" / "folder" / "out")
    assert sorted(tmp_path.rglob("*")) == before


def test_an_interruption_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = make_set(tmp_path / "set")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("teddy.exporting.make_card", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export(folder, "imagefolder", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_the_parquet_file_reads_without_datasets(tmp_path: Path):
    folder = make_set(tmp_path / "set", channels=1)
    out = export(folder, "huggingface", tmp_path / "out")
    table = parquet.read_table(out / "data" / "train-00000-of-00001.parquet")
    assert table.column_names == ["image", "label", "soft_label"]
    first = table.column("image")[0].as_py()
    assert first["path"] == "cat_00000.png"
    with Image.open(io.BytesIO(first["bytes"])) as image:
        assert image.mode == "L"
