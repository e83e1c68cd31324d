"""The image files below a folder, found by several threads and remembered for the next time.

Large folders leave their index in the user's cache; it is good as long as no folder walked has changed, so that opening
ImageNet again looks at a thousand folders and not at a million files. A file that is overwritten in place changes no
folder: remove the cache, or touch the folder, to have it looked at again.
"""

import hashlib
import io
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from teddy.data.cache import cache_folder
from teddy.data.listing import FileListing, Names, Progress
from teddy.errors import TeddyError
from teddy.files import write_whole

FORMAT = 1
KEEP_FROM = 10_000  # files; a smaller folder is listed as fast as its index is read
SETTLED_NS = 2_000_000_000  # a folder changed this short a time ago may change again within one tick of its clock
THREADS = 16  # they wait for the disk, or for the network


@dataclass(frozen=True, eq=False)
class Index:
    """Image files in the order of their paths, group after group: a group is what lies below one folder of the root;
    the group '' is what lies in the root itself."""

    root: str
    groups: tuple[str, ...]
    counts: np.ndarray  # int64, files of each group
    names: Names
    sizes: np.ndarray
    mtimes: np.ndarray
    folders: Names  # every folder walked, below root
    folder_mtimes: np.ndarray

    def listing(self, labels: Mapping[str, int]) -> FileListing:
        """The files of the groups that have a label."""
        of_file = np.repeat(np.array([labels.get(group, -1) for group in self.groups], np.int64), self.counts)
        every = FileListing(self.root, self.names, self.sizes, self.mtimes, of_file)
        return every if (of_file >= 0).all() else every.take((of_file >= 0).nonzero()[0])

    def count(self, group: str) -> int:
        """Files of a group."""
        return int(self.counts[self.groups.index(group)])


def index_images(root: Path, progress: Progress | None = None) -> Index:
    """All image files below a folder: regular ones that are not hidden, links followed. Each folder counts once in its
    group, so that links in a circle end."""
    index = _remembered(root)
    if index is None:
        started = time.time_ns()
        index = _walk(root, progress)
        if len(index.names) >= KEEP_FROM and index.folder_mtimes.max() < started - SETTLED_NS:
            remember(index)
    return index


def visible_folders(root: Path) -> list[str]:
    """Names of the folders in a folder, sorted, without hidden ones."""
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    except OSError as error:
        raise _unreadable(root, error) from None
    for name in names:
        if not _is_text(name):
            raise TeddyError(f"{root}: the name of folder {os.fsencode(name)!r} is not UTF-8; rename it")
    return names


@cache
def image_suffixes() -> frozenset[str]:
    """What Pillow knows, with the dot."""
    return frozenset(Image.registered_extensions())


class _Group(NamedTuple):
    names: Names
    sizes: list[int]
    mtimes: list[int]
    folders: list[tuple[str, int]]


def _walk(root: Path, progress: Progress | None) -> Index:
    above = frozenset(_identity(folder.stat()) for folder in (root, *root.resolve().parents))
    folders = [("", root.stat().st_mtime_ns)]
    groups = ["", *visible_folders(root)]
    found: list[_Group] = []
    total = 0
    with ThreadPoolExecutor(THREADS) as threads:
        for group in threads.map(lambda name: _walk_group(root, name, above), groups):
            found.append(group)
            total += len(group.names)
            if progress:
                progress(total)
    folders += [folder for group in found for folder in group.folders]
    return Index(
        str(root),
        tuple(groups),
        np.array([len(group.names) for group in found], np.int64),
        Names.join(group.names for group in found),
        np.array([size for group in found for size in group.sizes], np.int64),
        np.array([mtime for group in found for mtime in group.mtimes], np.int64),
        Names.pack(os.fsencode(folder) for folder, _ in folders),
        np.array([mtime for _, mtime in folders], np.int64),
    )


def _walk_group(root: Path, group: str, above: frozenset[tuple[int, int]]) -> _Group:
    files: list[tuple[bytes, int, int]] = []
    folders: list[tuple[str, int]] = []
    try:
        if not group:
            files, _ = _scan(str(root), "")
        else:
            seen = set(above)
            waiting = [(group, (root / group).stat())]
            while waiting:
                folder, status = waiting.pop()
                if _identity(status) in seen:
                    continue
                seen.add(_identity(status))
                folders.append((folder, status.st_mtime_ns))
                found, below = _scan(f"{root}/{folder}", f"{folder}/")
                files += found
                waiting += sorted(below, reverse=True)
    except OSError as error:
        raise _unreadable(error.filename or root / group, error) from None
    # Part by part of the path, as pathlib sorts: no part of a path holds a zero.
    files.sort(key=lambda file: file[0].replace(b"/", b"\0"))
    return _Group(
        Names.pack(file[0] for file in files), [file[1] for file in files], [file[2] for file in files], folders
    )


def _scan(folder: str, prefix: str) -> tuple[list[tuple[bytes, int, int]], list[tuple[str, os.stat_result]]]:
    """Image files (path below the root, size, modification time) and folders (path, status) in one folder."""
    suffixes = image_suffixes()
    files, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith("."):
                continue
            _, dot, suffix = name.rpartition(".")
            is_image = dot + suffix.lower() in suffixes
            if is_image and entry.is_symlink() and not Path(entry.path).exists():
                raise TeddyError(f"{entry.path}: a link to nothing; mend or remove it")
            if entry.is_dir():
                folders.append((prefix + name, entry.stat()))
            elif is_image and entry.is_file():
                status = entry.stat()
                files.append((os.fsencode(prefix + name), status.st_size, status.st_mtime_ns))
    return files, folders


def remember(index: Index) -> None:
    """Keep the index for the next time; where that is not possible, it is made again."""
    content = io.BytesIO()
    np.savez(
        content,
        groups=_bytes("\0".join(index.groups).encode()),
        counts=index.counts,
        names=_bytes(index.names.blob),
        bounds=index.names.bounds,
        sizes=index.sizes,
        mtimes=index.mtimes,
        folders=_bytes(index.folders.blob),
        folder_bounds=index.folders.bounds,
        folder_mtimes=index.folder_mtimes,
    )
    place = _place(Path(index.root))
    try:
        if place:
            write_whole(place, content.getvalue())
    except OSError:
        pass


def _remembered(root: Path) -> Index | None:
    """The index kept, if it is whole and no folder has changed."""
    place = _place(root)
    if place is None or not place.is_file():
        return None
    try:
        with place.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            index = Index(
                str(root),
                tuple(kept["groups"].tobytes().decode().split("\0")),
                kept["counts"],
                Names(kept["names"].tobytes(), kept["bounds"]),
                kept["sizes"],
                kept["mtimes"],
                Names(kept["folders"].tobytes(), kept["folder_bounds"]),
                kept["folder_mtimes"],
            )
        whole = len(index.names) == len(index.sizes) == len(index.mtimes) == index.counts.sum()
        whole = whole and index.names.bounds[-1] == len(index.names.blob) and len(index.groups) == len(index.counts)
        with ThreadPoolExecutor(THREADS) as threads:
            mtimes = list(threads.map(lambda folder: _mtime(root, folder), index.folders.tolist()))
        return index if whole and mtimes == index.folder_mtimes.tolist() else None
    except Exception:  # whatever is wrong with it, the folder itself is still there
        return None


def _place(root: Path) -> Path | None:
    folder = cache_folder()
    if folder is None:
        return None
    key = hashlib.sha256(os.fsencode(os.path.abspath(root)))  # noqa: PTH100 (resolve() would merge links)
    key.update("\0".join([str(FORMAT), *sorted(image_suffixes())]).encode())
    return folder / "index" / f"{key.hexdigest()[:32]}.npz"


def _mtime(root: Path, folder: bytes) -> int:
    return (root / os.fsdecode(folder)).stat().st_mtime_ns


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unreadable(place: object, error: OSError) -> TeddyError:
    return TeddyError(f"{place}: cannot be read ({error.strerror}); mend or remove it")
