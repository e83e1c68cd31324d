"""Commands with several processes, for the tests that need them."""

import os
import subprocess
import sys


def torchrun(processes: int, *options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *options]


def run(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(arguments, env=surroundings, capture_output=True, text=True, timeout=240, check=False)
