"""One process at a time in a folder, and nothing left behind by one that was killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from teddy.config import Config
from teddy.errors import TeddyError
from teddy.run import existing_run, new_run

HOLDING = """
import sys, time
from pathlib import Path
from teddy.locking import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_run_in_the_same_folder_is_told_of_the_first(tmp_path: Path, config: Config, quiet: Console):
    with new_run(tmp_path / "run", config, bytes_needed=0, console=quiet):
        message = rf"run: in use by process {os.getpid()} on .* since \d{{4}}-.*; wait until that is done"
        with pytest.raises(TeddyError, match=message), new_run(tmp_path / "run", config, bytes_needed=0):
            pass
        with pytest.raises(TeddyError, match=message), existing_run(tmp_path / "run"):
            pass
        with (
            pytest.raises(TeddyError, match=message),
            new_run(tmp_path / "run", config, bytes_needed=0, overwrite=True),
        ):
            pass
        assert (tmp_path / "run" / "config.yaml").exists()
    with new_run(tmp_path / "run", config, bytes_needed=0, console=quiet):
        pass


def test_a_process_that_was_killed_holds_nothing(tmp_path: Path, config: Config, quiet: Console):
    folder = tmp_path / "run"
    with new_run(folder, config, bytes_needed=0, console=quiet):
        pass
    other = subprocess.Popen([sys.executable, "-c", HOLDING, str(folder)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with (
        pytest.raises(TeddyError, match=f"in use by process {other.pid}"),
        new_run(folder, config, bytes_needed=0, console=quiet),
    ):
        pass
    other.send_signal(signal.SIGKILL)
    other.wait()
    other.stdout.close()
    deadline = time.monotonic() + 10
    with new_run(folder, config, bytes_needed=0, console=quiet) as run:
        assert time.monotonic() < deadline
        run.complete()
        assert not {".lock", ".running.json"} & set(run.read_json("manifest.json")["sha256"])
    assert not (folder / ".running.json").exists()


def test_starting_over_removes_everything_else(tmp_path: Path, config: Config, quiet: Console):
    folder = tmp_path / "run"
    with new_run(folder, config, bytes_needed=0, console=quiet) as run:
        run.write("pool/pool.json", b"{}")
        run.write("left", b"")
    with new_run(folder, config, bytes_needed=0, overwrite=True, console=quiet) as run:
        assert not run.has("pool")
        assert not run.has("left")
        assert run.has("config.yaml")
