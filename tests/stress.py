"""Runs that are killed, stopped, starved of space and damaged; `make stress` runs them all.

    python tests/stress.py [--kills 200] [--seed 0] [--folder DIR]

Every run is forked from one process that has imported everything, so that a kill costs a second and not ten. The run is
of digits, small, through every stage; checkpoints are written a hundred times as often as usual.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from safetensors import safe_open
from small_disk import permitted

from teddy import checkpoint, cli, files, run

SETTINGS = {
    "pool.network": "convnet-d1-w8-bn", "pool.first": 1, "pool.last": 6, "pool.training.epochs": 6,
    "method.iterations": 200, "method.teachers": 2, "method.classes_per_group": 2, "relabel.labels": "stored",
    "evaluation.networks": "[convnet-d1-w8-bn]", "evaluation.seeds": 2, "evaluation.training.epochs": 12,
    "evaluation.training.ema": 0.9, "evaluation.full_data.epochs": 2, "evaluation.full_data_seeds": 1,
}  # fmt: skip
SIGNS = {  # what is there from when on a stage is under way
    "pool": "source.json", "synthesis": "pool/pool.json", "labels": "synthesis/images.safetensors",
    "students": "distilled", "report": "evaluation/results.json",
}  # fmt: skip
STAGES = ("opening", *SIGNS)
SPREAD = dict(zip(STAGES, (1.0, 1.0, 1.5, 0.1, 1.0, 1.5), strict=True))  # seconds within which a kill falls
KILLS_A_STAGE = 2


def main() -> None:
    """Everything, and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    checkpoint.SECONDS_BETWEEN, checkpoint.PATIENCE = 0.2, 0
    root = given.folder or Path(tempfile.mkdtemp(prefix="teddy-stress-"))
    root.mkdir(exist_ok=True)
    begin = time.monotonic()
    assert wait_for(start(root / "whole")) == 0
    seconds, whole = time.monotonic() - begin, artefacts(root / "whole")
    print(f"undisturbed: {seconds:.1f} s, {len(whole)} files", flush=True)
    kill(root, whole, given.kills, random.Random(given.seed))
    stop(root, whole)
    fail(root, whole)
    fill()
    damage(root, whole)
    if not given.folder:
        shutil.rmtree(root)


def start(out: Path, before: Callable[[], None] = lambda: None, said: Path | None = None) -> int:
    """The command, in a process of its own, with what it says in a file; gives its number."""
    child = os.fork()
    if child:
        return child
    file = (said or out.parent / "said.txt").open("w", encoding="utf-8")
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    settings = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    sys.argv = ["teddy", "distill", "digits", "--ipc", "2", "--out", str(out), *settings]
    before()
    try:
        cli.main()
    except SystemExit as ended:
        file.flush()
        os._exit(int(ended.code or 0))
    os._exit(99)


def wait_for(child: int) -> int:
    """How a process ends: its exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def artefacts(folder: Path) -> dict[str, bytes]:
    """What has to be the same."""
    parts = [folder / name for name in ("pool", "synthesis", "relabel", "distilled", "evaluation")]
    return {str(path.relative_to(folder)): path.read_bytes() for p in parts for path in p.rglob("*") if path.is_file()}


def stage_of(folder: Path) -> str:
    """Where a run is, from what it has left."""
    for stage, sign in reversed(SIGNS.items()):
        if (folder / sign).exists():
            return stage
    return "opening"


def unreadable(folder: Path) -> list[str]:
    """Files that are neither whole nor on their way."""
    bad = []
    for path in folder.rglob("*"):
        try:
            if path.suffix == ".json" and not path.name.startswith("."):
                json.loads(path.read_text(encoding="utf-8"))
            elif path.suffix == ".safetensors":
                with safe_open(path, "pt") as opened:
                    opened.keys()
        except Exception as error:
            bad.append(f"{path}: {error}")
    return bad


def kill(root: Path, whole: dict[str, bytes], kills: int, chance: random.Random) -> None:
    """SIGKILL at random moments of every stage, one after the other; then a run ends as if nothing had been."""
    hit: Counter[str] = Counter()
    runs = wrong = torn = 0
    while sum(hit.values()) < kills:
        out = root / f"killed-{runs}"
        for stage in [stage for stage in STAGES for _ in range(KILLS_A_STAGE)]:
            child = start(out)
            while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) and before(stage, out):
                time.sleep(0.005)
            time.sleep(chance.uniform(0, SPREAD[stage]))
            os.kill(child, signal.SIGKILL)
            if wait_for(child) == -signal.SIGKILL:  # and was not done before
                hit[stage_of(out)] += 1
            torn += len(unreadable(out))
        code, made = wait_for(start(out)), artefacts(out)
        runs += 1
        if code == 0 and made == whole:
            shutil.rmtree(out)
        else:
            wrong += 1
            others = sorted(name for name in {*made, *whole} if made.get(name) != whole.get(name))
            print(f"  wrong, kept in {out}: exit code {code}, {', '.join(others) or 'the same bytes'}", flush=True)
        print(f"  {sum(hit.values())} kills, {runs} runs, {wrong} wrong, {torn} files unreadable", flush=True)
    print(f"{sum(hit.values())} kills over {runs} runs: {wrong} runs wrong, {torn} files unreadable", flush=True)
    print("  " + ", ".join(f"{stage} {hit[stage]}" for stage in STAGES), flush=True)
    assert not wrong
    assert not torn


def before(stage: str, folder: Path) -> bool:
    """Whether a run has yet to come to a stage."""
    return STAGES.index(stage_of(folder)) < STAGES.index(stage)


def stop(root: Path, whole: dict[str, bytes]) -> None:
    """SIGTERM and SIGINT in each stage."""
    for stage in STAGES[1:-1]:
        for number, expected in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            out = root / f"stopped-{stage}-{number}"
            child = start(out)
            while before(stage, out):
                time.sleep(0.002)
            os.kill(child, number)
            code = wait_for(child)
            assert code == expected, (stage, code)
            assert wait_for(start(out)) == 0
            assert artefacts(out) == whole, stage
            shutil.rmtree(out)
    print("stopped in each stage by SIGTERM and SIGINT: exit codes 143 and 130, the same bytes afterwards", flush=True)


def fail(root: Path, whole: dict[str, bytes]) -> None:
    """As if no space were left at the n-th file that is written, for many n."""
    tried = 0
    for number in [*range(0, 30, 3), *range(30, 400, 25)]:
        out = root / f"full-{number}"

        def fail_at(place: int = number) -> None:
            written, original = [0], files.write_whole

            def write(path: Path, content: bytes) -> None:
                written[0] += 1
                if written[0] > place:
                    raise OSError(28, "No space left on device")
                original(path, content)

            files.write_whole = run.write_whole = write
            from teddy.distilled import folder

            folder.write_whole = write

        code = wait_for(start(out, fail_at))
        if code == 0:
            break
        said = (root / "said.txt").read_text(encoding="utf-8").strip().splitlines()[-1]
        assert code == 2, (number, code, said)
        assert "no space left" in said, said
        assert wait_for(start(out)) == 0
        assert artefacts(out) == whole, number
        shutil.rmtree(out)
        tried += 1
    print(f"no space left at {tried} different files: one line, exit code 2, the same bytes afterwards", flush=True)


def fill() -> None:
    """A disk that is full, in each stage; in a process of its own, which may mount one."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = permitted(Path(folder))
    if prefix is None:
        print("disk full: left out, since mounting a tmpfs is permitted neither to root nor by unshare -rm", flush=True)
    else:
        subprocess.run([*prefix, sys.executable, Path(__file__).with_name("full_disk.py")], check=True)


def damage(root: Path, whole: dict[str, bytes]) -> None:
    """Each file of an unfinished run cut short or changed: named, or made again; never a wrong result."""
    out, ends = root / "damaged", Counter()
    child = start(out)
    while not list((out / "evaluation").rglob("*.json")):
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    kept = root / "kept"
    out.rename(kept)
    changes = {
        "cut": lambda content: content[: len(content) // 2],
        "changed": lambda content: content[:-3] + b"x" + content[-2:],
    }
    left_out = {"log.txt", "metrics.jsonl", ".lock", ".running.json"}
    for path in sorted(kept.rglob("*")):
        name = path.relative_to(kept)
        if (
            not path.is_file()
            or name.name in left_out
            or name.parts[0] in {"tensorboard", ".sums"}
            or not path.stat().st_size
        ):
            continue
        for change, how in changes.items():
            shutil.copytree(kept, out)
            (out / name).write_bytes(how(path.read_bytes()))
            code = wait_for(start(out))
            said = (root / "said.txt").read_text(encoding="utf-8").strip().splitlines()[-1]
            if code:
                assert code == 2, (name, change, code, said)
                assert name.name in said or str(out) in said, (name, change, said)
                ends["named"] += 1
            else:
                assert artefacts(out) == whole, (name, change)
                ends["made again, or of no consequence"] += 1
            shutil.rmtree(out)
    print(f"damaged files: {dict(ends)}; never a wrong result", flush=True)


if __name__ == "__main__":
    main()
