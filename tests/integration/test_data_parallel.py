"""A base that two processes train together: the teachers of one, whoever is stopped and whoever dies."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from processes import run, torchrun
from safetensors.torch import load_file
from torch import Tensor

SETTINGS = {
    "pool.network": "convnet-d1-w4-bn", "pool.first": 1, "pool.last": 3, "pool.training.epochs": 3,
    "pool.training.batch_size": 255, "pool.training.optimizer": "sgd", "pool.training.ema": 0.5,
    "engine.data_parallel": "true",
}  # fmt: skip
STEPS, PLACE = 18, 8
# The same command, but that something happens to a process in a step, the first time.
DISTURBED = """
import os, signal, time
from teddy import checkpoint, cli, parallel

WHAT, RANK, PLACE = os.environ["WHAT"], os.environ["HAPPENS_TO"], int(os.environ["PLACE"])
mean, steps = parallel.Processes.mean, []

def disturbed(self, *given):
    steps.append(1)
    if len(steps) == PLACE and os.environ["RANK"] == RANK and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        who = os.getppid() if WHAT == "torchrun" else os.getpid()
        os.kill(who, signal.SIGKILL if WHAT == "killed" else signal.SIGTERM)
    if len(steps) > PLACE and WHAT == "torchrun":
        time.sleep(0.5)  # its signals take a moment
    return mean(self, *given)

parallel.Processes.mean = disturbed
if WHAT == "killed":
    checkpoint.SECONDS_BETWEEN, checkpoint.PATIENCE = -1.0, 0
cli.main()
"""


def command(out: Path, program: list[str], **settings: object) -> list[str]:
    given = SETTINGS | {key.replace("__", "."): value for key, value in settings.items()}
    changes = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    return [*program, "pool", "digits", "--out", str(out), *changes]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "pool").iterdir()}


def teachers(folder: Path) -> dict[str, Tensor]:
    paths = sorted((folder / "pool").glob("epoch-*.safetensors"))
    return {f"{path.stem}.{key}": value for path in paths for key, value in load_file(path).items()}


def accuracies(folder: Path) -> list[float]:
    index = json.loads((folder / "pool" / "pool.json").read_text(encoding="utf-8"))
    return [member["accuracy"] for member in index["members"]]


def losses(folder: Path) -> list[float]:
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").split("\n") if line]
    return [point["loss"] for point in points]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "run"
    assert run(command(folder, [sys.executable, "-m", "teddy"])).returncode == 0
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "run"
    ended = run(command(folder, [*torchrun(2), "-m", "teddy"]))
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture
def disturbed(tmp_path: Path) -> str:
    (tmp_path / "disturbed.py").write_text(DISTURBED, encoding="utf-8")
    return str(tmp_path / "disturbed.py")


def test_with_synchronised_norms_two_make_the_teachers_of_one(one: Path, tmp_path: Path):
    ended = run(command(tmp_path / "run", [*torchrun(2), "-m", "teddy"], engine__synchronise_norms=True))
    assert ended.returncode == 0, ended.stderr
    made, expected = teachers(tmp_path / "run"), teachers(one)
    assert len(expected) > 20
    assert any("running_var" in key for key in expected)
    for key, values in expected.items():  # class means are averages of many values that cancel each other
        torch.testing.assert_close(made[key], values, rtol=1e-4, atol=5e-5 if "class_means" in key else 1e-5, msg=key)
    assert made.keys() == expected.keys()
    assert losses(tmp_path / "run") == pytest.approx(losses(one), rel=1e-4)
    assert len(losses(one)) == STEPS


def test_without_them_the_teachers_are_others_and_as_good(one: Path, two: Path):
    key = "epoch-003.features.1.running_var"
    assert not torch.allclose(teachers(two)[key], teachers(one)[key], rtol=1e-4)
    assert accuracies(two) == pytest.approx(accuracies(one), abs=10)
    assert files(two).keys() == files(one).keys()


@pytest.mark.parametrize(("what", "rank"), [("signalled", "0"), ("signalled", "1"), ("torchrun", "0")])
def test_whoever_hears_a_signal_all_stop_after_the_same_step(
    what: str, rank: str, two: Path, disturbed: str, tmp_path: Path
):
    folder = tmp_path / "run"
    stopped = run(command(folder, [*torchrun(2), disturbed]), WHAT=what, HAPPENS_TO=rank, PLACE=str(PLACE))
    assert stopped.returncode
    assert "error: stopped; the same command goes on where it was" in stopped.stderr
    assert "connection" not in stopped.stderr
    if what == "signalled":
        codes = set(re.findall(r"exitcode  : (-?\d+)", stopped.stderr))
        assert "143" in codes
        assert codes <= {"143", "-15"}, stopped.stderr  # torchrun ends one that is about to leave
        assert int(load_file(folder / "pool" / "training.safetensors")["step"]) == PLACE + 1
    ended = run(command(folder, [*torchrun(2), "-m", "teddy"]))
    assert ended.returncode == 0, ended.stderr
    assert int(re.search(r"going on from step (\d+)", ended.stderr)[1]) > PLACE
    assert files(folder) == files(two)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_process_that_is_killed_is_started_again_and_all_go_on(rank: str, two: Path, disturbed: str, tmp_path: Path):
    folder = tmp_path / "run"
    program = [*torchrun(2, "--max-restarts=1"), disturbed]
    ended = run(command(folder, program), WHAT="killed", HAPPENS_TO=rank, PLACE=str(PLACE))
    assert ended.returncode == 0, ended.stderr
    assert f"going on from step {PLACE - 1}" in ended.stderr
    assert "connection" not in ended.stderr
    assert files(folder) == files(two)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_process_that_is_killed_ends_the_others_and_is_named(rank: str, disturbed: str, tmp_path: Path):
    ended = run(command(tmp_path / "run", [*torchrun(2), disturbed]), WHAT="killed", HAPPENS_TO=rank, PLACE=str(PLACE))
    assert ended.returncode == 1
    assert "connection" not in ended.stderr
    assert "Traceback" not in ended.stderr.partition("ChildFailedError")[0].partition("torch/distributed")[0]
    assert re.search(rf"Root Cause.*\n\[0\]:\n(.*\n)?.*\n  rank      : {rank} .*\n  exitcode  : -9", ended.stderr)


def test_a_base_to_be_pruned_is_trained_together_too(tmp_path: Path):
    settings = {"pool__generation": "post", "pool__pruning__members": 1, "pool__training__epochs": 1}
    for name in ("first", "second"):
        ended = run(command(tmp_path / name, [*torchrun(2), "-m", "teddy"], **settings))
        assert ended.returncode == 0, ended.stderr
    assert sorted(files(tmp_path / "first")) == ["base.safetensors", "pool.json", "pruned-000.safetensors"]
    assert files(tmp_path / "first") == files(tmp_path / "second")


def test_batches_too_small_for_the_processes_are_refused_once(tmp_path: Path):
    ended = run(command(tmp_path / "run", [*torchrun(2), "-m", "teddy"], pool__training__batch_size=3))
    assert ended.stderr.count("error: pool.training.batch_size: 2 images in a batch are less than two for each") == 1
    assert not (tmp_path / "run").exists()
