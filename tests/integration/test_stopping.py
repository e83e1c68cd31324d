"""Stopped by a signal anywhere, a run goes on at the next step and ends with the same bytes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from conftest import QUICK, QUICK_ARGUMENTS
from rich.console import Console

import teddy
from teddy import progress
from teddy.distilled import encode_png
from teddy.errors import NumbersError
from teddy.run import MANIFEST
from teddy.stopping import Stopped, stoppable
from teddy.synthesis import wave

SETTINGS = QUICK | {"method.classes_per_group": 4, "evaluation.training.ema": 0.9, "relabel.labels": "stored"}
WAYS = {
    "prior": {},
    "post": {"pool.generation": "post", "pool.pruning.members": 2, "pool.training.batch_size": 64},
}
MEMBER = 23  # steps of fine-tuning a member, which is begun again


class Whole(NamedTuple):
    """An undisturbed run: what it leaves, the steps that its stages say, and those that were computed."""

    artefacts: dict[str, bytes]
    said: int
    computed: int


def distill(out: Path, **settings: object) -> teddy.Outcome:
    return teddy.distill("digits", ipc=2, out=out, settings=SETTINGS | settings, console=Console(quiet=True))


def artefacts(run: Path) -> dict[str, bytes]:
    folders = (run / "pool", run / "synthesis", run / "distilled", run / "evaluation")
    return {str(path.relative_to(run)): path.read_bytes() for f in folders for path in f.rglob("*") if path.is_file()}


@contextmanager
def counted(then: Callable[[int], None] = lambda _: None) -> Iterator[tuple[list[int], list[int]]]:
    """Steps as stages say them, of whose number `then` is told, and as they are computed."""
    said: list[int] = []
    computed: list[int] = []
    step, backward = progress._Watched.step, torch.Tensor.backward

    def say(stage: progress._Watched, count: int = 1, /, **values: torch.Tensor) -> None:
        said.append(count)
        then(len(said))
        step(stage, count, **values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress._Watched, "step", say)
        patch.setattr(torch.Tensor, "backward", lambda *given: (computed.append(1), backward(*given))[1])
        yield said, computed


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Whole]:
    runs = {}
    for way, settings in WAYS.items():
        with counted() as (said, computed):
            folder = distill(tmp_path_factory.mktemp("whole"), **settings).folder
        runs[way] = Whole(artefacts(folder), len(said), len(computed))
    return runs


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("share", [0.0, 0.15, 0.3, 0.4, 0.5, 0.6, 0.8, 0.95])
def test_stopped_anywhere_it_ends_with_the_same_bytes(way: str, share: float, whole: dict[str, Whole], tmp_path: Path):
    expected = whole[way]
    place = 1 + int(share * expected.said)
    with counted(lambda number: os.kill(os.getpid(), signal.SIGTERM) if number == place else None) as (_, computed):
        with stoppable(), pytest.raises(Stopped) as stopped:
            distill(tmp_path / "run", **WAYS[way])
        assert stopped.value.exit_code == 143
        assert not (tmp_path / "run" / MANIFEST).exists()
        assert artefacts(distill(tmp_path / "run", **WAYS[way]).folder) == expected.artefacts
    assert len(computed) - expected.computed <= (MEMBER if way == "post" else 0)


def test_a_second_signal_ends_at_once(tmp_path: Path):
    script = (
        "import os, signal, time\n"
        "from teddy.stopping import stoppable\n"
        "with stoppable():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('going on', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(60)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=50)
    assert (ended.returncode, ended.stdout) == (130, "going on\n")


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    while not file.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def test_the_command_stops_in_the_middle_and_goes_on(tmp_path: Path):
    command = [sys.executable, "-m", "teddy", "distill", "digits", "--ipc", "1", "--out", str(tmp_path / "run")]
    command += [
        *QUICK_ARGUMENTS,
        "--set",
        "pool.last=400",
        "--set",
        "pool.training.epochs=400",
        "--set",
        "pool.first=1",
    ]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "run" / "pool" / "epoch-001.safetensors", started)
    started.terminate()
    _, told = started.communicate(timeout=60)
    assert started.returncode == 143
    assert told.splitlines()[-1] == "error: stopped; the same command goes on where it was"
    assert (tmp_path / "run" / "pool" / "training.safetensors").exists()


def break_block(monkeypatch: pytest.MonkeyPatch, number: int, times: int) -> list[float]:
    """Let a block's images go wrong, so often; gives the learning rates with which it was tried."""
    step, rates = wave.Wave.step, []

    def stumble(self: wave.Wave, *given: object) -> dict[str, torch.Tensor]:
        terms = step(self, *given)  # type: ignore[arg-type]
        if self.groups[0].number == number and self.done == 1:
            rates.append(self._schedule.base_lrs[0])
            if len(rates) <= times:
                self.images.data[0] = torch.nan
        return terms

    monkeypatch.setattr(wave.Wave, "step", stumble)
    return rates


def test_a_block_that_goes_wrong_is_made_again_at_a_lower_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rates = break_block(monkeypatch, 1, times=1)
    outcome = distill(tmp_path / "run")
    assert rates[1] == pytest.approx(rates[0] / 10)
    assert "block 1 is not finite at a learning rate of" in (outcome.folder / "log.txt").read_text(encoding="utf-8")
    assert len(teddy.load(outcome.folder)) == 20


def test_a_block_that_goes_wrong_twice_does_not_take_the_others_with_it(
    whole: dict[str, Whole], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        break_block(patch, 1, times=2)
        with pytest.raises(NumbersError, match="block 1 is not finite") as error:
            distill(tmp_path / "run")
    assert error.value.exit_code == 3
    assert len(list((tmp_path / "run" / "synthesis" / "blocks").iterdir())) == 5
    with counted() as (_, computed):
        assert artefacts(distill(tmp_path / "run").folder) == whole["prior"].artefacts
    assert len(computed) < whole["prior"].computed


def test_ctrl_c_reaches_workers_too_and_ends_as_well(tmp_path: Path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(8):
            pixels = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8)
            (tmp_path / "photos" / name / f"{number}.png").write_bytes(encode_png(pixels))
    command = [sys.executable, "-m", "teddy", "distill", str(tmp_path / "photos"), "--ipc", "1"]
    command += ["--out", str(tmp_path / "run"), *QUICK_ARGUMENTS, "--set", "pool.last=4000", "--set", "pool.first=1"]
    command += ["--set", "pool.training.epochs=4000", "--set", "data.loader=streamed", "--set", "data.workers=1"]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for(tmp_path / "run" / "pool" / "epoch-001.safetensors", started)
    os.killpg(started.pid, signal.SIGINT)
    _, told = started.communicate(timeout=60)
    assert started.returncode == 130
    assert told.splitlines()[-1] == "error: stopped; the same command goes on where it was"
