"""A disk that runs full in the middle of a run; `make stress` lets it run full in every stage."""

import sys
from pathlib import Path

import pytest
from processes import run
from small_disk import permitted


def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_space(tmp_path: Path):
    (tmp_path / "trial").mkdir()
    prefix = permitted(tmp_path / "trial")
    if prefix is None:
        pytest.skip("mounting a tmpfs is not permitted here")
    command = [*prefix, sys.executable, str(Path(__file__).with_name("full_disk.py"))]
    command += ["--folder", str(tmp_path / "runs"), "--stages", "synthesis"]
    ended = run(command)
    assert ended.returncode == 0, ended.stderr
    assert "disk full in synthesis: RUN: no space left on the device; what is finished is kept" in ended.stdout
