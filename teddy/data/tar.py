"""WebDataset's tar files: `key.jpg` with `key.cls`, or with `key.json` that has a "label". Read where they lie."""

import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from teddy.data.index import image_suffixes
from teddy.data.labels import Written, number_labels, read_names
from teddy.data.listing import Catalogue, Names, Progress, digest, file_stamps
from teddy.data.shards import divide, find_shards
from teddy.errors import TeddyError

SUFFIX = ".tar"
CLASS_FILES = ("classnames.txt", "classes.txt")
LABEL_SUFFIXES = (".cls", ".json")  # the first that is there


@dataclass(frozen=True, eq=False)
class TarListing:
    """Images in tar files, each found by where it begins."""

    files: tuple[str, ...]
    stamps: np.ndarray  # int64 [files, 2]: sizes and modification times
    of_file: np.ndarray  # int64 [N]
    members: Names
    offsets: np.ndarray  # int64 [N]
    sizes: np.ndarray  # int64 [N]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, row: int) -> bytes:
        """The encoded image."""
        try:
            with Path(self.files[self.of_file[row]]).open("rb") as file:
                content = _read_at(file, int(self.offsets[row]), int(self.sizes[row]))
        except OSError as error:
            raise TeddyError(f"{self.place(row)}: cannot be read ({error.strerror}); fetch the file again") from None
        if len(content) < self.sizes[row]:
            raise TeddyError(f"{self.place(row)}: the file has become shorter; fetch it again")
        return content

    def place(self, row: int) -> str:
        """File and member."""
        return f"{self.files[self.of_file[row]]} member {self.members[row].decode('utf-8', 'replace')}"

    def take(self, rows: np.ndarray, labels: np.ndarray | None = None) -> "TarListing":
        """These rows in this order."""
        chosen = self.labels[rows] if labels is None else labels
        return TarListing(
            self.files,
            self.stamps,
            self.of_file[rows],
            self.members.take(rows),
            self.offsets[rows],
            self.sizes[rows],
            chosen,
        )

    def fingerprint(self) -> str:
        """The same wherever the files lie."""
        names = "\0".join(Path(file).name for file in self.files).encode()
        members = (self.members.blob, self.members.bounds, self.of_file, self.offsets, self.sizes)
        return digest(names, self.stamps, *members, self.labels)

    def seen(self) -> dict[str, str]:
        """Size and time of each file."""
        return file_stamps(self.files, self.stamps)


class _Image(NamedTuple):
    member: str
    offset: int
    size: int
    label: str


def read_tar(root: Path, progress: Progress | None = None) -> Catalogue:
    """Class names come from a text file beside the shards, or else are the labels themselves."""
    shards = find_shards(root, SUFFIX)
    beside = [shards[0].parent / name for name in CLASS_FILES if (shards[0].parent / name).is_file()]
    names = read_names(beside[0]) if beside else None
    train_files, test_files = divide(shards)
    train, train_values = _read_part(train_files, progress)
    test, test_values = _read_part(test_files, progress) if test_files else (None, None)
    written = None if test is None or test_values is None else Written(test_values, test.place)
    classes, train_labels, test_labels = number_labels(root, names, Written(train_values, train.place), written)
    every, every_test = np.arange(len(train)), np.arange(len(test or ()))
    return Catalogue(
        "tar", classes, train.take(every, train_labels), test.take(every_test, test_labels) if test else None
    )


def _read_part(files: list[Path], progress: Progress | None) -> tuple[TarListing, np.ndarray]:
    """The images with labels 0, and their labels as written."""
    images: list[_Image] = []
    of_file: list[int] = []
    for number, file in enumerate(files):
        found = _read_shard(file)
        if not found:
            raise TeddyError(f"{file}: no images in it; a shard holds key.jpg with key.cls for each")
        images += found
        of_file += [number] * len(found)
        if progress:
            progress(len(images))
    stamps = [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    listing = TarListing(
        tuple(map(str, files)),
        np.array(stamps, np.int64),
        np.array(of_file, np.int64),
        Names.pack(image.member.encode("utf-8", "surrogateescape") for image in images),
        np.array([image.offset for image in images], np.int64),
        np.array([image.size for image in images], np.int64),
        np.zeros(len(images), np.int64),
    )
    values = [image.label for image in images]
    if all(re.fullmatch(r"[+-]?[0-9]{1,18}", value) for value in values):
        return listing, np.array([int(value) for value in values], np.int64)
    return listing, np.array(values, dtype=np.str_)


def _read_shard(path: Path) -> list[_Image]:
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[tuple[str, str], str] = {}
    suffixes = image_suffixes()
    with path.open("rb") as file:
        for member in _members(path, file):
            folder, _, name = member.name.rpartition("/")
            stem, dot, rest = name.partition(".")  # WebDataset's rule: the key ends at the first dot
            key, suffix = f"{folder}/{stem}" if folder else stem, (dot + rest).lower()
            if suffix in suffixes:
                if key in images:
                    raise TeddyError(f"{path}: key '{key}' has two images; give each a key of its own")
                images[key] = member
            elif suffix in LABEL_SUFFIXES:
                if (key, suffix) in labels:
                    raise TeddyError(f"{path}: member '{member.name}' is there twice; give each image a key of its own")
                labels[key, suffix] = _label(path, member, _read_at(file, member.offset_data, member.size))
    for key, suffix in labels:
        if key not in images and suffix == ".cls":
            raise TeddyError(f"{path}: member '{key}.cls' has no image beside it; add it or remove the label")
    found = []
    for key, member in images.items():
        label = next((labels[key, suffix] for suffix in LABEL_SUFFIXES if labels.get((key, suffix))), None)
        if label is None:
            raise TeddyError(f"{path}: member '{member.name}' has no label; add '{key}.cls' with its class")
        found.append(_Image(member.name, member.offset_data, member.size, label))
    return found


def _members(path: Path, file: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """The plain files of a tar that is whole. `tarfile` itself takes damage between members for the end."""
    length = path.stat().st_size
    end, last = 0, "the beginning"
    cut = TeddyError(f"{path}: not a whole tar file; fetch it again")
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                if end > length:
                    raise TeddyError(f"{path}: cut short in member '{member.name}'; fetch it again")
                if not member.isdir():
                    if not member.isreg() or member.issparse():
                        raise TeddyError(f"{path}: member '{member.name}' is no plain file; write it in as one")
                    if not member.name.rpartition("/")[2].startswith("."):
                        yield member
                last = f"member '{member.name}'"
    except (tarfile.TarError, OSError, EOFError, ValueError):
        raise cut from None
    if _read_at(file, end, tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise TeddyError(f"{path}: cut short or damaged after {last}; fetch it again")


def _label(path: Path, member: tarfile.TarInfo, content: bytes) -> str:
    try:
        if member.name.lower().endswith(".cls"):
            return content.decode().strip()
        note = json.loads(content)
    except ValueError:
        raise TeddyError(f"{path}: member '{member.name}' is no text of its kind; write it again") from None
    value = note.get("label") if isinstance(note, dict) else None
    return str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)
