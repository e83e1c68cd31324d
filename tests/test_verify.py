"""Every change to a set's folder is found and named; an untouched one has nothing to report."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from test_distilled import make_set, seal, tell

from teddy.distilled import DESCRIPTION, LABELS, sha256
from teddy.errors import TeddyError
from teddy.verification import verify

CLASSES = ["cat", "dog", "emu"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    distilled = make_set(folder / "distilled")
    (folder / "pool").mkdir()
    (folder / "pool" / "pool.json").write_text(json.dumps({"members": [], "classes": CLASSES}))
    checksum = sha256((distilled / DESCRIPTION).read_bytes())
    (folder / "manifest.json").write_text(json.dumps({"sha256": {f"distilled/{DESCRIPTION}": checksum}}))
    return folder


def test_an_untouched_set_is_well(run: Path):
    assert verify(run) == []
    assert verify(run / "distilled") == []


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def fifo_instead(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link_outside(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


CHANGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "image changed": ("images/dog/00001.png", flip, "changed"),
    "labels changed": (LABELS, flip, "changed"),
    "extra changed": ("stored_labels.safetensors", flip, "changed"),
    "image missing": ("images/dog/00001.png", Path.unlink, "missing"),
    "file added": ("images/dog/added.png", Path.touch, "'images/dog/added.png' is not in dataset.json"),
    "hidden file added": (".hidden", Path.touch, "'.hidden' is not in dataset.json"),
    "link added": ("images/link", lambda path: path.symlink_to("/etc"), "'images/link' is not in dataset.json"),
    "pipe": ("images/dog/00001.png", fifo_instead, "no regular file"),
    "link": ("images/dog/00001.png", link_outside, "link to outside"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_one_change_is_one_line(change: str, run: Path):
    name, make, message = CHANGES[change]
    make(run / "distilled" / name)
    (finding,) = verify(run)
    assert message in finding
    assert Path(name).name in finding
    assert len(finding.splitlines()) == 1


def test_a_changed_description_is_found(run: Path):
    tell(run / "distilled", source="another")
    (finding,) = verify(run)
    assert "dataset.json: changed since manifest.json was written" in finding
    (run / "distilled" / DESCRIPTION).write_text("{")
    (finding,) = verify(run)
    assert "dataset.json" in finding


def test_what_does_not_load_is_found_though_the_checksums_are_right(tmp_path: Path):
    folder = make_set(tmp_path / "set")
    (folder / "images" / "cat" / "00000.png").write_bytes(b"no image")
    seal(folder)
    (finding,) = verify(folder)
    assert "no PNG image" in finding


@pytest.mark.parametrize("place", ["pool/pool.json", "source.json"])
def test_classes_in_another_order_are_found(place: str, run: Path):
    (run / "pool" / "pool.json").write_text(json.dumps({"members": []}))
    (run / place).write_text(json.dumps({"classes": ["cat", "emu", "dog"]}))
    for folder in (run, run / "distilled"):
        findings = verify(folder)
        assert len(findings) == 2
        assert "label 1 is 'dog' in the set and 'emu' in" in findings[0]


def test_another_pool_can_be_named(tmp_path: Path):
    folder = make_set(tmp_path / "set")
    pool = tmp_path / "teachers"
    pool.mkdir()
    (finding,) = verify(folder, pool=pool)
    assert "no pool.json" in finding
    (pool / "pool.json").write_text(json.dumps({"classes": CLASSES}))
    assert verify(folder, pool=pool) == []
    (pool / "pool.json").write_text(json.dumps({"classes": CLASSES[:2]}))
    assert "the set has 3" in verify(folder, pool=pool)[0]


def test_a_folder_without_a_set_is_refused(tmp_path: Path):
    with pytest.raises(TeddyError, match="neither a distilled set nor a run"):
        verify(tmp_path)
