"""Several processes under torchrun: the same bytes as one, whoever dies and whoever goes on."""

import sys
from pathlib import Path

import pytest
from conftest import QUICK_ARGUMENTS
from processes import run, torchrun

SETTINGS = [*QUICK_ARGUMENTS, "--set", "method.classes_per_group=2", "--set", "method.iterations=6"]
SETTINGS += ["--set", "relabel.labels=stored"]
# The same command, but that one process is killed in the middle of a stage, the first time.
DYING = """
import os, signal
from teddy import cli, relabel
from teddy.synthesis import wave

place, step, keep = os.environ["DIES_IN"], wave.Wave.step, relabel.record_epoch

def die():
    if os.environ.get("RANK", "0") == os.environ["DIES"] and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        os.kill(os.getpid(), signal.SIGKILL)

def dying_step(self, *given):
    if place == "synthesis" and self.done == 3 and self.groups[0].number > 4:
        die()
    return step(self, *given)

def dying_record(*given):
    if place == "labels":
        die()
    return keep(*given)

wave.Wave.step, relabel.record_epoch = dying_step, dying_record
cli.main()
"""


def command(out: Path, program: list[str]) -> list[str]:
    return [*program, "distill", "digits", "--ipc", "2", "--out", str(out), *SETTINGS]


def artefacts(folder: Path) -> dict[str, bytes]:
    parts = [folder / name for name in ("pool", "synthesis", "relabel", "distilled", "evaluation")]
    return {str(path.relative_to(folder)): path.read_bytes() for p in parts for path in p.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("one") / "run"
    assert run(command(folder, [sys.executable, "-m", "teddy"])).returncode == 0
    return artefacts(folder)


@pytest.fixture
def dying(tmp_path: Path) -> str:
    (tmp_path / "dying.py").write_text(DYING, encoding="utf-8")
    return str(tmp_path / "dying.py")


def test_two_processes_make_the_bytes_of_one(whole: dict[str, bytes], tmp_path: Path):
    ended = run(command(tmp_path / "run", [*torchrun(2), "-m", "teddy"]))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("random control, hard labels") == 1
    assert artefacts(tmp_path / "run") == whole


@pytest.mark.parametrize(("place", "rank"), [("synthesis", "1"), ("labels", "0")])
def test_a_process_that_dies_is_started_again(
    place: str, rank: str, whole: dict[str, bytes], dying: str, tmp_path: Path
):
    program = [*torchrun(2, "--max-restarts=1"), dying]
    ended = run(command(tmp_path / "run", program), DIES=rank, DIES_IN=place)
    assert ended.returncode == 0, ended.stderr
    assert artefacts(tmp_path / "run") == whole


def test_begun_by_two_and_finished_by_one(whole: dict[str, bytes], dying: str, tmp_path: Path):
    assert run(command(tmp_path / "run", [*torchrun(2), dying]), DIES="1", DIES_IN="synthesis").returncode == 1
    assert not (tmp_path / "run" / "manifest.json").exists()
    assert list((tmp_path / "run" / "synthesis" / "blocks").iterdir())
    assert run(command(tmp_path / "run", [sys.executable, "-m", "teddy"])).returncode == 0
    assert artefacts(tmp_path / "run") == whole


def test_begun_by_one_and_finished_by_two(whole: dict[str, bytes], dying: str, tmp_path: Path):
    assert run(command(tmp_path / "run", [sys.executable, dying]), DIES="0", DIES_IN="labels").returncode == -9
    assert run(command(tmp_path / "run", [*torchrun(2), "-m", "teddy"])).returncode == 0
    assert artefacts(tmp_path / "run") == whole


def test_a_mistake_is_told_once(tmp_path: Path):
    ended = run([*command(tmp_path / "run", [*torchrun(2), "-m", "teddy"])[:-2], "--set", "relabel.labels=none"])
    assert ended.returncode == 1
    assert ended.stderr.count("error: relabel.labels") == 1
