"""CIFAR-10 and CIFAR-100 as their authors publish them for Python.

The files are pickles. They are read by an unpickler to which every name but the few of a pickled array is unknown, and
those few stand for small classes here: no code that a file could name is run.
"""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from teddy.data.listing import ArrayListing, Catalogue, Progress
from teddy.errors import TeddyError

SIDE = 32


@dataclass(frozen=True)
class Layout:
    """The files of one of the two, and what is called how in them."""

    train: tuple[str, ...]
    test: str
    meta: str
    labels: str
    names: str


LAYOUTS = {
    "cifar-10-batches-py": Layout(
        tuple(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta", "labels", "label_names"
    ),
    "cifar-100-python": Layout(("train",), "test", "meta", "fine_labels", "fine_label_names"),
}


def is_cifar(path: Path) -> bool:
    """Whether a path is one of the two folders, or their parent."""
    return bool(_found(path))


def read_cifar(path: Path, progress: Progress | None = None) -> Catalogue:
    """Classes in the order of the files' own labels."""
    found = _found(path)
    if len(found) > 1:
        raise TeddyError(f"source {path}: holds both {' and '.join(LAYOUTS)}; name one of them")
    folder, layout = found[0]
    names = _load(folder / layout.meta).get(layout.names)
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise _damaged(folder / layout.meta, f"no '{layout.names}'")
    classes = tuple(name.decode() if isinstance(name, bytes) else name for name in names)
    train = _listing([folder / name for name in layout.train], layout, len(classes))
    if progress:
        progress(len(train))
    return Catalogue("cifar", classes, train, _listing([folder / layout.test], layout, len(classes)))


def _found(path: Path) -> list[tuple[Path, Layout]]:
    return [
        (folder, layout)
        for name, layout in LAYOUTS.items()
        for folder in (path, path / name)
        if (folder / layout.meta).is_file() and (folder / layout.test).is_file()
    ]


def _listing(files: list[Path], layout: Layout, num_classes: int) -> ArrayListing:
    batches = [_batch(file, layout, num_classes) for file in files]
    pixels = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    origins = tuple((str(file), len(labels)) for file, (_, labels) in zip(files, batches, strict=True))
    return ArrayListing.of(np.ascontiguousarray(pixels), np.concatenate([labels for _, labels in batches]), origins)


def _batch(file: Path, layout: Layout, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    content = _load(file)
    pixels, labels = content.get("data"), content.get(layout.labels)
    if not isinstance(pixels, _Array) or pixels.shape[1:] != (3 * SIDE * SIDE,):
        raise _damaged(file, f"no 'data' of {3 * SIDE * SIDE} values for each image")
    if not isinstance(labels, list) or len(labels) != pixels.shape[0]:
        raise _damaged(file, f"no '{layout.labels}' for each image")
    for row, label in enumerate(labels):
        if type(label) is not int or not 0 <= label < num_classes:
            raise _damaged(file, f"label {label!r} in row {row} is none of {num_classes} classes")
    return pixels.values, np.array(labels, np.int64)


class _Array:
    """A pickled array of bytes: what NumPy would be told of it, taken down."""

    shape: tuple[int, ...] = ()
    values: np.ndarray

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, dtype, fortran_order, content = state
        if not isinstance(dtype, _Dtype) or fortran_order:
            raise pickle.UnpicklingError("an array that is not of plain bytes")
        self.values = np.frombuffer(content, np.uint8).reshape(self.shape)


class _Dtype:
    def __init__(self, code: bytes | str, *_: object) -> None:
        if code not in (b"u1", "u1"):
            raise pickle.UnpicklingError("an array that is not of plain bytes")

    def __setstate__(self, state: object) -> None:
        pass


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes for Python 2."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"text in {encoding!r}")
    return text.encode("latin1")


ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise TeddyError(f"asks for '{module}.{name}', which no CIFAR file needs")
        return ALLOWED[module, name]


def _load(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            content = _Unpickler(opened, encoding="bytes").load()
    except TeddyError as error:
        raise _damaged(file, str(error)) from None
    except FileNotFoundError:
        raise TeddyError(f"{file}: is missing; unpack the data set again") from None
    except Exception as error:  # a damaged pickle raises nearly anything
        raise _damaged(file, str(error).splitlines()[0] if str(error) else type(error).__name__) from None
    if not isinstance(content, dict):
        raise _damaged(file, "no table in it")
    return {key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key): content[key] for key in content}


def _damaged(file: Path, reason: str) -> TeddyError:
    return TeddyError(f"{file}: not a file of CIFAR's ({reason}); fetch it again")
