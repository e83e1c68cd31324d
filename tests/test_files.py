"""Files of a run folder: whole or not at all, and noticed when they are changed."""

from pathlib import Path

import pytest
import torch
from conftest import OpenRun
from safetensors.torch import save

from teddy import files
from teddy.checkpoint import Checkpoint
from teddy.errors import TeddyError
from teddy.files import copy_sum, read_checked, read_tensors, remove_checked, write_checked
from teddy.pieces import Pieces

DAMAGES = {
    "cut": lambda content: content[:-4],
    "changed": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "emptied": lambda _: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_was_changed_is_named(damage: str, tmp_path: Path):
    write_checked(tmp_path, "pool/a.safetensors", save({"a": torch.ones(3)}))
    assert torch.equal(read_tensors(tmp_path, "pool/a.safetensors")["a"], torch.ones(3))
    file = tmp_path / "pool" / "a.safetensors"
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    with pytest.raises(TeddyError, match=r"pool/a\.safetensors: has been changed or damaged"):
        read_tensors(tmp_path, "pool/a.safetensors")
    file.unlink()
    with pytest.raises(TeddyError, match=r"pool/a\.safetensors: is missing"):
        read_tensors(tmp_path, "pool/a.safetensors")


@pytest.mark.parametrize("dies_at", [0, 1, 2])
def test_replacing_a_file_can_be_interrupted_anywhere(dies_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_checked(tmp_path, "a.json", b"old")
    calls, original = [], files.write_whole

    def die(path: Path, content: bytes) -> None:
        if len(calls) == dies_at:
            raise KeyboardInterrupt
        calls.append(path)
        original(path, content)

    monkeypatch.setattr(files, "write_whole", die)
    with pytest.raises(KeyboardInterrupt):
        write_checked(tmp_path, "a.json", b"new")
    assert read_checked(tmp_path, "a.json") == (b"new" if dies_at == 2 else b"old")


def test_a_digest_travels_with_a_copy_and_goes_with_its_file(tmp_path: Path):
    write_checked(tmp_path / "one", "a/b", b"content")
    (tmp_path / "two" / "a").mkdir(parents=True)
    (tmp_path / "two" / "a" / "b").write_bytes(b"other")
    copy_sum(tmp_path / "one", tmp_path / "two", "a/b")
    with pytest.raises(TeddyError, match="changed"):
        read_checked(tmp_path / "two", "a/b")
    remove_checked(tmp_path / "one", "a")
    assert [path.name for path in (tmp_path / "one").rglob("*")] == [".sums"]


def test_files_without_a_digest_are_read(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"made elsewhere")
    assert read_checked(tmp_path, "a") == b"made elsewhere"


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_pieces_and_checkpoints_count_as_not_there(damage: str, open_run: OpenRun):
    run = open_run("run")
    pieces, checkpoint = Pieces(run, "stage/pieces"), Checkpoint(run, "stage/state.safetensors")
    for number in (0, 2):
        pieces.keep(number, {"values": torch.full((4,), float(number))})
    checkpoint.write({"step": torch.tensor(3)})
    assert pieces.missing(range(4)) == [1, 3]
    for name in ("stage/pieces/000002.safetensors", "stage/state.safetensors"):
        file = run.folder / name
        file.write_bytes(DAMAGES[damage](file.read_bytes()))
    assert pieces.missing(range(4)) == [1, 2, 3]
    assert checkpoint.read() is None
    assert not (run.folder / "stage" / "pieces" / "000002.safetensors").exists()
    assert [piece["values"].tolist() for piece in pieces.take([0])] == [[0.0] * 4]
