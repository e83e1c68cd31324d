"""Every kind of source in the table, from real files: looked at by `teddy inspect`, distilled by `teddy distill`."""

import csv
import io
import json
import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import QUICK_ARGUMENTS
from PIL import Image

import teddy as library
from teddy.data.source import KINDS

Teddy = Callable[..., tuple[int, str, str]]
CLASSES = ("n01 кот", "n02 a dog")
PER_CLASS = 6
NOISE = np.random.default_rng(0)


def picture(label: int, size: int = 12) -> np.ndarray:
    return (NOISE.integers(0, 100, (size, size, 3)) + 150 * label).astype(np.uint8)


def encoded(label: int, form: str = "PNG") -> bytes:
    content = io.BytesIO()
    Image.fromarray(picture(label)).save(content, form)
    return content.getvalue()


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def rows() -> list[tuple[int, int]]:
    return [(label, number) for label in range(2) for number in range(PER_CLASS)]


def make_folder(root: Path) -> None:
    for label, number in rows():
        write(root / "train" / CLASSES[label] / "deeper" / f"{number}.png", encoded(label))
        write(root / "val" / CLASSES[label] / f"{number}.png", encoded(label))


def make_parquet(root: Path) -> None:
    notes = {
        "info": {"features": {"label": {"names": list(CLASSES), "_type": "ClassLabel"}, "image": {"_type": "Image"}}}
    }
    for part in ("train", "test"):
        table = pa.table(
            {
                "image": [{"bytes": encoded(label), "path": f"{label}-{number}.png"} for label, number in rows()],
                "label": [label for label, _ in rows()],
            }
        ).replace_schema_metadata({"huggingface": json.dumps(notes)})
        root.mkdir(exist_ok=True)
        pq.write_table(table, root / f"{part}-00000-of-00001.parquet")


def make_tar(root: Path) -> None:
    root.mkdir()
    for part in ("train", "val"):
        with tarfile.open(root / f"{part}-000000.tar", "w") as shard:
            for label, number in rows():
                for suffix, content in (("png", encoded(label)), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{label}-{number}.{suffix}")
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))
    (root / "classnames.txt").write_text("\n".join(CLASSES) + "\n", encoding="utf-8")


def make_cifar(root: Path) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        pixels = np.stack([picture(label, 32).transpose(2, 0, 1).ravel() for label, _ in rows()])
        batch = {b"data": pixels, b"labels": [label for label, _ in rows()], b"batch_label": name.encode()}
        write(folder / name, pickle.dumps(batch, protocol=2))
    write(folder / "batches.meta", pickle.dumps({b"label_names": [name.encode() for name in CLASSES]}, protocol=2))


def make_tiny_imagenet(root: Path) -> None:
    wnids = ("n01443537", "n01629819")
    annotations = []
    for label, number in rows():
        write(root / "train" / wnids[label] / "images" / f"{wnids[label]}_{number}.JPEG", encoded(label, "JPEG"))
        write(root / "train" / wnids[label] / f"{wnids[label]}_boxes.txt", b"boxes")
        name = f"val_{label}{number}.JPEG"
        write(root / "val" / "images" / name, encoded(label, "JPEG"))
        annotations.append(f"{name}\t{wnids[label]}\t0\t0\t9\t9\n")
    (root / "val" / "val_annotations.txt").write_text("".join(annotations))
    (root / "wnids.txt").write_text("\n".join(reversed(wnids)) + "\n")
    (root / "words.txt").write_text("".join(f"{wnid}\tword\n" for wnid in wnids))


def make_imagenet(root: Path) -> None:
    wnids = ("n01440764", "n01443537")
    lines = []
    for label, number in rows():
        write(root / "train" / wnids[label] / f"{wnids[label]}_{number}.JPEG", encoded(label, "JPEG"))
        name = f"ILSVRC2012_val_{label}{number:07d}"
        write(root / "val" / f"{name}.JPEG", encoded(label, "JPEG"))
        lines.append((name, f"{wnids[label]} 0 0 9 9"))
    with (root / "LOC_val_solution.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("ImageId", "PredictionString"), *lines])


MAKERS: dict[str, Callable[[Path], None] | None] = {
    "digits": None,
    "parquet": make_parquet,
    "tar": make_tar,
    "cifar": make_cifar,
    "tiny-imagenet": make_tiny_imagenet,
    "imagenet": make_imagenet,
    "folder": make_folder,
}


def test_every_kind_is_tried():
    assert list(MAKERS) == list(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_is_looked_at_and_distilled(kind: str, teddy: Teddy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    maker = MAKERS[kind]
    source = "digits" if maker is None else str(tmp_path / "data")
    if maker:
        maker(tmp_path / "data")
    code, out, err = teddy("inspect", source, "--sheet", tmp_path / "sheet.png")
    assert code == 0, err
    assert f"read as {kind}" in out
    assert "resident loader" in out
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert min(sheet.size) > 40
    code, out, err = teddy("distill", source, "--ipc", 1, "--out", tmp_path / "run", *QUICK_ARGUMENTS)
    assert code == 0, err
    assert "random control" in out
    distilled = library.load(tmp_path / "run")
    assert len(distilled) == len(distilled.classes)
    if kind in {"folder", "parquet", "tar", "cifar"}:
        assert distilled.classes == CLASSES


def test_inspect_says_what_is_wrong_without_stopping(teddy: Teddy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path / "data")
    bad = tmp_path / "data" / "train" / CLASSES[0] / "deeper" / "2.png"
    bad.write_bytes(bad.read_bytes()[:60])
    code, out, _ = teddy("inspect", tmp_path / "data")
    assert code == 0
    assert "imbalance 1.20" in out
    assert "2.png" in out.replace("\n", "")
    assert (tmp_path / "data-sheet.png").exists()
    code, _, err = teddy("distill", tmp_path / "data", "--ipc", 1, "--out", tmp_path / "run", *QUICK_ARGUMENTS)
    assert (code, err.count("\n")) == (2, 1)
    assert "--skip-bad 1" in err
    code, _, err = teddy(
        "distill", tmp_path / "data", "--ipc", 1, "--out", tmp_path / "run", "--skip-bad", 1, *QUICK_ARGUMENTS
    )
    assert code == 0, err
    assert json.loads((tmp_path / "run" / "source.json").read_text())["skipped"] == [str(bad)]


def test_a_class_order_file_decides_the_labels(teddy: Teddy, tmp_path: Path):
    make_folder(tmp_path / "data")
    (tmp_path / "order.txt").write_text("\n".join(reversed(CLASSES)), encoding="utf-8")
    settings = ["--set", f"data.class_order={tmp_path / 'order.txt'}", *QUICK_ARGUMENTS]
    assert teddy("distill", tmp_path / "data", "--ipc", 1, "--out", tmp_path / "run", *settings)[0] == 0
    assert library.load(tmp_path / "run").classes == tuple(reversed(CLASSES))


@pytest.mark.parametrize("loader", ["resident", "streamed"])
def test_both_loaders_go_the_whole_way_to_the_same_bytes(loader: str, teddy: Teddy, tmp_path: Path):
    make_folder(tmp_path / "data")

    def run(name: str, *settings: str) -> dict[str, bytes]:
        arguments = [part for setting in settings for part in ("--set", setting)]
        code, _, err = teddy(
            "distill", tmp_path / "data", "--ipc", 2, "--out", tmp_path / name, *QUICK_ARGUMENTS, *arguments
        )
        assert code == 0, err
        files = sorted((tmp_path / name / "distilled" / "images").rglob("*.png"))
        return {path.name: path.read_bytes() for path in files} | {
            "labels": (tmp_path / name / "distilled" / "labels.safetensors").read_bytes()
        }

    assert run("auto") == run("other", f"data.loader={loader}", "data.workers=1")


@pytest.mark.parametrize(
    "settings", [{}, {"relabel.top_k": 3}, {"relabel.stored_epochs": 1}, {"relabel.budget_mb": 0.001}]
)
def test_stored_labels_travel_with_the_set(settings: dict[str, object], teddy: Teddy, tmp_path: Path):
    chosen = ["--set", "relabel.labels=stored"]
    chosen += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    code, out, err = teddy("distill", "digits", "--ipc", 1, "--out", tmp_path / "run", *QUICK_ARGUMENTS, *chosen)
    assert code == 0, err
    assert "random control" in out
    assert (tmp_path / "run" / "distilled" / "stored_labels.safetensors").stat().st_size > 500
    assert teddy("verify", tmp_path / "run")[0] == 0


def test_verify_names_what_was_changed(teddy: Teddy, tmp_path: Path):
    assert teddy("distill", "digits", "--ipc", 1, "--out", tmp_path / "run", *QUICK_ARGUMENTS)[0] == 0
    assert teddy("verify", tmp_path / "run")[:2] == (0, f"{tmp_path / 'run'}: as it was made\n")
    victim = tmp_path / "run" / "distilled" / "images" / "7" / "00000.png"
    Image.new("L", (16, 16)).save(victim)
    code, out, err = teddy("verify", tmp_path / "run")
    assert code == 2
    assert str(victim) in out
    assert err.count("\n") == 1


@pytest.mark.parametrize("form", ["imagefolder", "huggingface", "tensors"])
def test_an_export_has_its_card(form: str, teddy: Teddy, tmp_path: Path):
    assert teddy("distill", "digits", "--ipc", 1, "--out", tmp_path / "run", *QUICK_ARGUMENTS)[0] == 0
    code, _, err = teddy("export", tmp_path / "run", "--format", form, "--out", tmp_path / "export")
    assert code == 0, err
    card = (tmp_path / "export" / "README.md").read_text(encoding="utf-8")
    assert "license" in card
    assert "random control" in card


def test_an_unknown_format_is_one_line(teddy: Teddy, tmp_path: Path):
    assert teddy("distill", "digits", "--ipc", 1, "--out", tmp_path / "run", *QUICK_ARGUMENTS)[0] == 0
    code, _, err = teddy("export", tmp_path / "run", "--format", "imagefolders", "--out", tmp_path / "export")
    assert (code, err.count("\n")) == (2, 1)
    assert "did you mean 'imagefolder'" in err
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize("kind", [kind for kind, maker in MAKERS.items() if maker])
def test_files_that_change_under_a_run_are_named(kind: str, teddy: Teddy, tmp_path: Path):
    maker, data = MAKERS[kind], tmp_path / "data"
    assert maker
    maker(data)
    command = ("distill", data, "--ipc", 1, "--out", tmp_path / "run", *QUICK_ARGUMENTS)
    assert teddy(*command)[0] == 0
    shutil.rmtree(data)
    maker(data)  # other pixels
    code, _, err = teddy(*command)
    assert code == 2
    err = err.splitlines()[-1]
    names = [path.name for path in data.rglob("*") if path.is_file()]
    assert any(f"{name} is another" in err for name in names), err


def test_a_file_that_vanishes_under_a_run_is_named(teddy: Teddy, tmp_path: Path):
    make_folder(tmp_path / "data")
    command = ("distill", tmp_path / "data", "--ipc", 1, "--out", tmp_path / "run", *QUICK_ARGUMENTS)
    assert teddy(*command)[0] == 0
    (tmp_path / "data" / "train" / CLASSES[1] / "deeper" / "3.png").unlink()
    code, _, err = teddy(*command)
    assert code == 2
    err = err.splitlines()[-1]
    assert f"{CLASSES[1]}/deeper/3.png is gone" in err
    (tmp_path / "run" / "source_files.json.gz").write_bytes(b"torn")
    code, _, err = teddy(*command)
    assert code == 2
    assert "have changed" in err
