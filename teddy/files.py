"""Files that are there whole or not at all, and that are noticed when somebody has changed them.

A folder's `.sums` holds the digests of its files, each under the file's own name; while one is being replaced, those of
the old and of the new one.
"""

import hashlib
import os
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from teddy.distributed import world
from teddy.errors import TeddyError

SUMS = ".sums"


def write_whole(path: Path, content: bytes) -> None:
    """Write beside the place, flush, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part" if world().size > 1 else f".{path.name}.part")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def is_left_of(path: Path, name: str) -> bool:
    """Whether this is what is left where writing a file `name` was interrupted."""
    return path.name.startswith(f".{name}.") and path.suffix == ".part"


def write_checked(root: Path, name: str, content: bytes) -> None:
    """The same for a file below `root`, with a digest."""
    path, sums, digest = root / name, _sums(root, name), hashlib.sha256(content).hexdigest()
    if path.exists() and sums.exists():
        write_whole(sums, f"{sums.read_text(encoding='ascii')}{digest}\n".encode())
    else:
        write_whole(sums, f"{digest}\n".encode())
    write_whole(path, content)
    write_whole(sums, f"{digest}\n".encode())


def read_checked(root: Path, name: str) -> bytes:
    """What was written; raises if that is no longer what is there."""
    path, sums = root / name, _sums(root, name)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise TeddyError(f"{path}: is missing; put it back, or start over with --overwrite") from None
    if sums.exists() and hashlib.sha256(content).hexdigest() not in sums.read_text(encoding="utf-8", errors="replace"):
        raise TeddyError(f"{path}: has been changed or damaged; put it back, or start over with --overwrite")
    return content


def read_tensors(root: Path, name: str) -> dict[str, Tensor]:
    """The same for a safetensors file."""
    try:
        return load_tensors(read_checked(root, name))
    except SafetensorError as error:
        raise TeddyError(f"{root / name}: damaged ({error}); copy it again, or make it anew") from None


def copy_sum(root: Path, other: Path, name: str) -> None:
    """The digest of a file that was copied from another folder, if it has one there."""
    if _sums(root, name).exists():
        write_whole(_sums(other, name), _sums(root, name).read_bytes())


def remove_checked(root: Path, name: str) -> None:
    """A file or folder, and its digests."""
    for place in (root / name, root / SUMS / name, _sums(root, name)):
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)


def _sums(root: Path, name: str) -> Path:
    return root / SUMS / f"{name}.sha256"
