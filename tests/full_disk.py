"""A disk that is really full, in each stage: a small tmpfs that a ballast fills when the stage begins.

    unshare -rm python tests/full_disk.py [--stages pool labels] [--folder DIR]

The run is halted while the ballast is laid, so that its next write is the one that fails. Then the tmpfs is made larger
and the same command has to end as if nothing had been.
"""

import argparse
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from small_disk import fill, mount, unmount
from stress import STAGES, artefacts, before, stage_of, start, unreadable, wait_for

from teddy import run

SMALL, LARGE = "64m", "128m"


def main() -> None:
    """Every stage, in a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    root = given.folder or Path(tempfile.mkdtemp(prefix="teddy-full-"))
    root.mkdir(exist_ok=True)
    assert wait_for(start(root / "whole")) == 0
    whole = artefacts(root / "whole")
    for stage in given.stages:
        print(f"  disk full in {stage}: {full_in(stage, root, whole)}", flush=True)
    print(f"disk full in {len(given.stages)} stages: one line, exit code 2, the same bytes when there was space again")
    if not given.folder:
        shutil.rmtree(root)


def full_in(stage: str, root: Path, whole: dict[str, bytes]) -> str:
    """Let the disk be full from a stage on, then not; gives what was said."""
    disk = root / f"disk-{stage}"
    disk.mkdir()
    mount(disk, "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs")
    out, said = disk / "run", root / "said.txt"
    try:
        if stage == "opening":
            code = wait_for(start(out, lambda: fill_once_space_was_found(disk), said))
        else:
            child = halted_in(stage, out, said)
            fill(disk)
            os.kill(child, signal.SIGCONT)
            while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                fill(disk)  # also what the run itself gives back
                time.sleep(0.002)
            code = wait_for(child)
        text = said.read_text(encoding="utf-8").strip()
        error = text.splitlines()[-1]
        assert code == 2, (stage, code, text)
        assert error.startswith(f"error: {out}: no space left"), text
        assert text.count("rror") == 1, text  # neither a traceback nor a complaint of the log's
        if out.exists():
            assert stage_of(out) == stage, (stage, stage_of(out), text)
        else:
            assert "nothing was left behind" in error, (stage, text)
        assert not unreadable(out), stage
        assert not list(out.rglob("*.part")), stage
        mount(disk, "-o", f"remount,size={LARGE}")
        assert wait_for(start(out, said=said)) == 0, said.read_text(encoding="utf-8")
        assert artefacts(out) == whole, stage
    finally:
        unmount(disk)
        disk.rmdir()
    return error.removeprefix("error: ").replace(str(out), "RUN")


def halted_in(stage: str, out: Path, said: Path) -> int:
    """A run that stands still in a stage; a short one may be over before that is seen, then again."""
    while True:
        child = start(out, said=said)
        while before(stage, out) and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.002)
        os.kill(child, signal.SIGSTOP)
        if stage_of(out) == stage:
            return child
        os.kill(child, signal.SIGKILL)
        wait_for(child)
        shutil.rmtree(out)


def fill_once_space_was_found(disk: Path) -> None:
    """The run looks at the beginning whether there is enough; from then on there is none."""
    require = run._require_space

    def look(folder: Path, bytes_needed: int) -> None:
        require(folder, bytes_needed)
        fill(disk)

    run._require_space = look


if __name__ == "__main__":
    main()
