"""The index of a large folder: kept, trusted as long as no folder has changed, never in the way."""

import os
import time
from pathlib import Path

import pytest

from teddy.data import index
from teddy.data.index import Index, index_images

LONG_AGO = 10**18


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index, "KEEP_FROM", 5)
    return tmp_path / "cache" / "teddy" / "index"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for name in ("a cat/1.png", "a cat/deep/2.png", "собака/3.png", "собака/4.png", "5.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    settle(root)
    return root


def settle(root: Path) -> None:
    """Give every folder an old modification time, as one that has been there for a while."""
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        os.utime(folder, ns=(LONG_AGO, LONG_AGO))


def contents(found: Index) -> object:
    arrays = (found.counts, found.names.bounds, found.sizes, found.mtimes, found.folder_mtimes)
    return found.groups, found.names.blob, found.folders.blob, [array.tolist() for array in arrays]


def forbid_walking(monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(*_: object) -> Index:
        raise AssertionError("walked again")

    monkeypatch.setattr(index, "_walk", walk)


def test_an_index_is_kept_and_used_again(photos: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    first = index_images(photos)
    assert first.groups == ("", "a cat", "собака")
    assert first.counts.tolist() == [1, 2, 2]
    assert [path.suffix for path in cache.iterdir()] == [".npz"]
    forbid_walking(monkeypatch)
    again = index_images(photos)
    assert contents(again) == contents(first)
    listing = again.listing({"a cat": 0, "собака": 1})
    assert listing.labels.tolist() == [0, 0, 1, 1]
    assert [listing.read(row).decode() for row in range(4)] == [
        "a cat/1.png",
        "a cat/deep/2.png",
        "собака/3.png",
        "собака/4.png",
    ]


@pytest.mark.parametrize("place", ["6.png", "a cat/6.png", "a cat/deep/6.png", "new/6.png"])
def test_a_new_file_anywhere_is_noticed(photos: Path, cache: Path, place: str):
    index_images(photos)
    assert any(cache.iterdir())
    (photos / place).parent.mkdir(exist_ok=True)
    (photos / place).touch()
    assert len(index_images(photos).names) == 6


def test_a_folder_that_is_gone_is_noticed(photos: Path, cache: Path):
    index_images(photos)
    assert any(cache.iterdir())
    (photos / "a cat" / "deep" / "2.png").unlink()
    (photos / "a cat" / "deep").rmdir()
    assert len(index_images(photos).names) == 4


@pytest.mark.parametrize("damage", ["emptied", "cut", "flipped", "text", "a folder"])
def test_a_damaged_index_is_made_again(photos: Path, cache: Path, damage: str):
    first = index_images(photos)
    (kept,) = cache.iterdir()
    content = kept.read_bytes()
    middle = content.index(b"5.png") + 1  # in the names
    changed = {
        "emptied": b"",
        "cut": content[: len(content) // 2],
        "flipped": content[:middle] + b"?" + content[middle + 1 :],
        "text": b"not an index",
    }
    kept.unlink()
    if damage == "a folder":
        kept.mkdir()
    else:
        kept.write_bytes(changed[damage])
    assert contents(index_images(photos)) == contents(first)
    if damage != "a folder":
        assert kept.read_bytes() != changed[damage]


def test_a_small_folder_leaves_nothing_behind(photos: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(index, "KEEP_FROM", 6)
    index_images(photos)
    assert not cache.exists()


def test_a_folder_that_has_just_changed_is_not_kept(photos: Path, cache: Path):
    now = time.time_ns()
    os.utime(photos / "a cat", ns=(now, now))
    index_images(photos)
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_no_error(photos: Path, cache: Path):
    cache.parent.parent.mkdir()
    cache.parent.write_text("a file where the folder should be")
    assert len(index_images(photos).names) == 5
    assert len(index_images(photos).names) == 5


def test_without_a_name_for_it_the_cache_lies_at_home(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(index, "KEEP_FROM", 5)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    index_images(photos)
    assert len(list((tmp_path / "home" / ".cache" / "teddy" / "index").iterdir())) == 1


def test_an_index_serves_a_folder_by_any_path(photos: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(photos.parent)
    first = index_images(Path("photos"))
    assert len(list(cache.iterdir())) == 1
    forbid_walking(monkeypatch)
    monkeypatch.chdir("/")
    again = index_images(photos)
    assert contents(again) == contents(first)
    assert again.listing({"a cat": 0}).read(0) == b"a cat/1.png"


def test_two_folders_have_two_indices(photos: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    photos.rename(tmp_path / "first")
    index_images(tmp_path / "first")
    second = tmp_path / "second"
    for number in range(6):
        (second / "b").mkdir(parents=True, exist_ok=True)
        (second / "b" / f"{number}.png").touch()
    settle(second)
    index_images(second)
    assert len(list(cache.iterdir())) == 2
    forbid_walking(monkeypatch)
    monkeypatch.chdir(tmp_path)
    assert len(index_images(Path("first")).names) == 5
    assert len(index_images(Path("second")).names) == 6
