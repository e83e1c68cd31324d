"""One process at a time in a run folder; a second one is told who the first is.

The lock is the operating system's: it goes with the process that holds it, however that ends.
"""

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from teddy.errors import TeddyError

LOCK = ".lock"
OWNER = ".running.json"
FILES = {LOCK, OWNER}


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder, which exists, for this process alone."""
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise TeddyError(f"{folder}: in use by {_owner(folder)}; wait until that is done, or stop it") from None
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        owner = {"process": os.getpid(), "machine": platform.node(), "since": since}
        (folder / OWNER).write_text(json.dumps(owner), encoding="utf-8")
        yield
    finally:
        (folder / OWNER).unlink(missing_ok=True)
        lock.release()


def _owner(folder: Path) -> str:
    try:
        told = json.loads((folder / OWNER).read_text(encoding="utf-8"))
        return f"process {told['process']} on {told['machine']} since {told['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # it has only just begun
        return "another process"
