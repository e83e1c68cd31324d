"""How often the state of long work is written."""

from types import SimpleNamespace

import pytest
import torch
from conftest import OpenRun

from teddy import checkpoint, stopping


@pytest.mark.parametrize(
    ("writing", "pause"),
    [(0.0, checkpoint.SECONDS_BETWEEN), (0.1, checkpoint.SECONDS_BETWEEN), (3.0, 3.0 * checkpoint.PATIENCE)],
)
def test_what_takes_long_to_write_is_written_less_often(
    writing: float, pause: float, open_run: OpenRun, monkeypatch: pytest.MonkeyPatch
):
    run, now = open_run("run"), [0.0]
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: now[0]))
    write = run.write_tensors

    def slow(*given: object) -> None:
        write(*given)  # type: ignore[arg-type]
        now[0] += writing

    monkeypatch.setattr(run, "write_tensors", slow)
    kept = checkpoint.Checkpoint(run, "stage/state.safetensors")
    now[0] += checkpoint.SECONDS_BETWEEN + 1
    assert kept.due  # what writing takes is not known yet
    kept.write({"step": torch.tensor(1)})
    now[0] += pause - 1
    assert not kept.due
    now[0] += 2
    assert kept.due


def test_whoever_is_asked_to_stop_writes_at_once(open_run: OpenRun, monkeypatch: pytest.MonkeyPatch):
    kept = checkpoint.Checkpoint(open_run("run"), "stage/state.safetensors")
    assert not kept.due
    monkeypatch.setattr(stopping, "ending", lambda: True)
    assert kept.due
