"""Parquet files as Hugging Face writes them: a column of encoded images and one of labels."""

import json
import os
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from teddy.data.labels import Written, number_labels
from teddy.data.listing import Catalogue, Progress, digest, file_stamps
from teddy.data.shards import divide, find_shards
from teddy.errors import TeddyError

SUFFIX = ".parquet"
IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")
CACHE_BYTES = 256_000_000  # of row groups, in each process


class RowGroups:
    """The row groups of some files, read when needed; those used last stay in memory, up to a number of bytes."""

    def __init__(
        self, files: tuple[str, ...], column: str, groups: list[tuple[int, int, int]], cache_bytes: int
    ) -> None:
        self.files = files
        self.column = column
        self.groups = groups  # (file, row group in it, rows)
        self.starts = np.cumsum([0, *(rows for _, _, rows in groups)])
        self.cache_bytes = cache_bytes
        self._forget()

    def value(self, row: int) -> bytes | None:
        """The image of a row, counted through all files."""
        group = int(np.searchsorted(self.starts, row, "right")) - 1
        found = self._group(group)[row - int(self.starts[group])].as_py()
        return found["bytes"] if isinstance(found, dict) else found

    def place(self, row: int) -> str:
        """File and row in it, counted from 0."""
        file, _, _ = self.groups[int(np.searchsorted(self.starts, row, "right")) - 1]
        first = next(position for position, group in enumerate(self.groups) if group[0] == file)
        return f"{self.files[file]} row {row - int(self.starts[first])}"

    def _group(self, number: int) -> pa.ChunkedArray:
        if self._process != os.getpid():  # a forked child may have inherited a lock that nobody will release
            self._forget()
        with self._lock:
            if number in self._cache:
                self._cache.move_to_end(number)
                return self._cache[number]
            file, group, _ = self.groups[number]
            try:
                with pq.ParquetFile(self.files[file]) as opened:
                    column = opened.read_row_group(group, columns=[self.column], use_threads=False).column(0)
            except (pa.ArrowException, OSError) as error:
                raise _damaged(self.files[file], error) from None
            self._cache[number] = column
            self._held += column.nbytes
            while self._held > self.cache_bytes and len(self._cache) > 1:
                self._held -= self._cache.popitem(last=False)[1].nbytes
            return column

    def _forget(self) -> None:
        self._process = os.getpid()
        self._lock = Lock()
        self._cache: OrderedDict[int, pa.ChunkedArray] = OrderedDict()
        self._held = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return RowGroups, (self.files, self.column, self.groups, self.cache_bytes)


@dataclass(frozen=True, eq=False)
class ParquetListing:
    """Images in the rows of Parquet files. Neighbouring rows are read together: a walk from row to row is fast, jumps
    through more than the cache holds read a whole row group for each image."""

    row_groups: RowGroups
    stamps: np.ndarray  # int64 [files, 2]: sizes and modification times
    rows: np.ndarray  # int64 [N], counted through all files
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, row: int) -> bytes:
        """The encoded image."""
        content = self.row_groups.value(int(self.rows[row]))
        if content is None:
            raise TeddyError(
                f"{self.place(row)}: holds no image, only its name; write the file again with images in it"
            )
        return content

    def place(self, row: int) -> str:
        """File and row."""
        return self.row_groups.place(int(self.rows[row]))

    def take(self, rows: np.ndarray, labels: np.ndarray | None = None) -> "ParquetListing":
        """These rows in this order; they share the cache."""
        chosen = self.labels[rows] if labels is None else labels
        return ParquetListing(self.row_groups, self.stamps, self.rows[rows], chosen)

    def fingerprint(self) -> str:
        """The same wherever the files lie."""
        names = "\0".join(Path(file).name for file in self.row_groups.files).encode()
        return digest(names, self.stamps, self.rows, self.labels)

    def seen(self) -> dict[str, str]:
        """Size and time of each file."""
        return file_stamps(self.row_groups.files, self.stamps)


@dataclass(frozen=True)
class _Part:
    row_groups: RowGroups
    stamps: np.ndarray
    written: Written
    names: list[str] | None

    def listing(self, labels: np.ndarray) -> ParquetListing:
        return ParquetListing(self.row_groups, self.stamps, np.arange(len(labels)), labels)


def read_parquet(root: Path, progress: Progress | None = None) -> Catalogue:
    """Class names come from Hugging Face's note in the files, or else are the labels themselves."""
    train_files, test_files = divide(find_shards(root, SUFFIX))
    train = _read_part(train_files, progress)
    test = _read_part(test_files, progress) if test_files else None
    classes, train_labels, test_labels = number_labels(root, train.names, train.written, test.written if test else None)
    return Catalogue(
        "parquet",
        classes,
        train.listing(train_labels),
        None if test is None or test_labels is None else test.listing(test_labels),
    )


def _read_part(files: list[Path], progress: Progress | None) -> _Part:
    columns, names = _columns(files[0])
    groups: list[tuple[int, int, int]] = []
    values: list[np.ndarray] = []
    total = 0
    for number, file in enumerate(files):
        if _columns(file)[0] != columns:
            raise TeddyError(f"{file}: has other columns than {files[0].name}; write both the same way")
        try:
            with pq.ParquetFile(file) as opened:
                counts = [opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups)]
                labels = opened.read(columns=[columns[1]], use_threads=False).column(0)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(file, error) from None
        if labels.null_count:
            row = labels.is_null().to_pylist().index(True)
            raise TeddyError(f"{file} row {row}: has no label; add it or remove the row")
        groups += [(number, group, count) for group, count in enumerate(counts)]
        values.append(_as_array(labels))
        total += len(labels)
        if progress:
            progress(total)
    row_groups = RowGroups(tuple(map(str, files)), columns[0], groups, CACHE_BYTES)
    stamps = np.array([(file.stat().st_size, file.stat().st_mtime_ns) for file in files], np.int64)
    return _Part(row_groups, stamps, Written(np.concatenate(values), row_groups.place), names)


def _columns(file: Path) -> tuple[tuple[str, str], list[str] | None]:
    """What to read for the image and for the label, and the class names where they are noted."""
    try:
        with pq.ParquetFile(file) as opened:
            schema = opened.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise _damaged(file, error) from None
    image = _first(file, schema, "images", IMAGE_COLUMNS)
    label = _first(file, schema, "labels", LABEL_COLUMNS)
    image_type, label_type = schema.field(image).type, schema.field(label).type
    if pa.types.is_struct(image_type) and image_type.get_field_index("bytes") >= 0:
        image = f"{image}.bytes"
    elif not (pa.types.is_binary(image_type) or pa.types.is_large_binary(image_type)):
        raise TeddyError(f"{file}: column '{image}' holds {image_type}; encoded images are needed, as bytes")
    if pa.types.is_dictionary(label_type):
        label_type = label_type.value_type
    if not (pa.types.is_integer(label_type) or pa.types.is_string(label_type) or pa.types.is_large_string(label_type)):
        raise TeddyError(f"{file}: column '{label}' holds {label_type}; numbers or names of classes are needed")
    return (image, label), _noted_names(schema, label) if pa.types.is_integer(label_type) else None


def _first(file: Path, schema: pa.Schema, what: str, names: Iterable[str]) -> str:
    for name in names:
        if name in schema.names:
            return name
    raise TeddyError(
        f"{file}: no column of {what}; name one '{next(iter(names))}' (there are: {', '.join(schema.names)})"
    )


def _noted_names(schema: pa.Schema, label: str) -> list[str] | None:
    try:
        note = json.loads((schema.metadata or {})[b"huggingface"])
        names = note["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return [str(name) for name in names] if isinstance(names, list) and names else None


def _as_array(labels: pa.ChunkedArray) -> np.ndarray:
    if pa.types.is_dictionary(labels.type):
        labels = labels.cast(labels.type.value_type)
    if pa.types.is_integer(labels.type):
        return labels.to_numpy().astype(np.int64)
    return np.array(labels.to_pylist(), dtype=np.str_)


def _damaged(file: object, error: Exception) -> TeddyError:
    reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
    return TeddyError(f"{file}: not readable as Parquet ({reason}); fetch it again")
