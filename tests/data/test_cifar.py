"""CIFAR's files for Python, which are pickles: read whole, and read safely."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from teddy.data.kinds import open_catalogue
from teddy.errors import TeddyError

OLD_NUMPY = (b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def pixels(seed: int, count: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def dump(path: Path, content: object, protocol: int = 2) -> None:
    """As the authors' Python 2 wrote it: with NumPy's names of then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol).replace(*OLD_NUMPY))


def cifar10(root: Path) -> Path:
    for number in range(1, 6):
        dump(
            root / f"data_batch_{number}", {b"data": pixels(number), b"labels": [0, 1, 2, 1], b"filenames": [b"x"] * 4}
        )
    dump(root / "test_batch", {b"data": pixels(9), b"labels": [2, 2, 0, 1], b"batch_label": b"testing batch 1 of 1"})
    dump(root / "batches.meta", {b"label_names": [b"airplane", b"cat", b"dog"], b"num_vis": 3072})
    return root


def cifar100(root: Path) -> Path:
    for part, seed in {"train": 20, "test": 21}.items():
        content = {b"data": pixels(seed), b"fine_labels": [1, 0, 1, 0], b"coarse_labels": [7, 7, 7, 7]}
        dump(root / part, content)
    dump(root / "meta", {b"fine_label_names": [b"apple", b"bee"], b"coarse_label_names": [b"all"]})
    return root


def image(row: np.ndarray) -> np.ndarray:
    """The red plane first, then green, then blue, each row after row."""
    return np.stack([row[:1024].reshape(32, 32), row[1024:2048].reshape(32, 32), row[2048:].reshape(32, 32)], axis=2)


@pytest.mark.parametrize("parent", [False, True])
def test_cifar_10_is_read_bit_for_bit(tmp_path: Path, parent: bool):
    root = cifar10(tmp_path / "cifar-10-batches-py")
    catalogue = open_catalogue(str(tmp_path if parent else root))
    assert (catalogue.kind, catalogue.classes) == ("cifar", ("airplane", "cat", "dog"))
    assert catalogue.train.labels.tolist() == [0, 1, 2, 1] * 5
    for row in range(20):
        assert np.array_equal(catalogue.train.read(row), image(pixels(1 + row // 4)[row % 4]))
    assert catalogue.train.place(6) == f"{root}/data_batch_2 row 2"
    assert catalogue.test is not None
    assert catalogue.test.labels.tolist() == [2, 2, 0, 1]
    assert np.array_equal(catalogue.test.read(3), image(pixels(9)[3]))


@pytest.mark.parametrize("parent", [False, True])
def test_cifar_100_is_read_by_its_fine_labels(tmp_path: Path, parent: bool):
    root = cifar100(tmp_path / "cifar-100-python")
    catalogue = open_catalogue(str(tmp_path if parent else root))
    assert catalogue.classes == ("apple", "bee")
    assert catalogue.train.labels.tolist() == [1, 0, 1, 0]
    assert np.array_equal(catalogue.train.read(2), image(pixels(20)[2]))
    assert catalogue.test is not None
    assert np.array_equal(catalogue.test.read(0), image(pixels(21)[0]))


def test_the_very_bytes_of_python_2_are_read(tmp_path: Path):
    cifar10(tmp_path)
    rows = pixels(3, 1)
    # What Python 2's cPickle wrote: byte strings as such, and the array through NumPy's names of then.
    content = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85"
        b"U\x01b\x87Rq\x05(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNN"
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + (3072).to_bytes(4, "little") + rows.tobytes() + b"tb"
        b"U\x06labelsq\x08]q\tK\x01au."
    )
    (tmp_path / "test_batch").write_bytes(content)
    test = open_catalogue(str(tmp_path)).test
    assert test is not None
    assert test.labels.tolist() == [1]
    assert np.array_equal(test.read(0), image(rows[0]))


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_files_pickled_anew_are_read_too(tmp_path: Path, protocol: int):
    cifar10(tmp_path)
    content = {"data": pixels(9), "labels": [2, 2, 0, 1]}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(content, protocol))
    test = open_catalogue(str(tmp_path)).test
    assert test is not None
    assert np.array_equal(test.read(1), image(pixels(9)[1]))


def test_the_listing_is_pickled_and_its_fingerprint_follows_the_pixels(tmp_path: Path):
    train = open_catalogue(str(cifar10(tmp_path))).train
    taken = pickle.loads(pickle.dumps(train.take(np.array([19, 0]))))
    assert taken.labels.tolist() == [1, 0]
    assert np.array_equal(taken.read(0), train.read(19))
    assert taken.place(0) == train.place(19)
    assert open_catalogue(str(tmp_path)).train.fingerprint() == train.fingerprint()
    dump(tmp_path / "data_batch_3", {b"data": pixels(3) ^ 1, b"labels": [0, 1, 2, 1]})
    assert open_catalogue(str(tmp_path)).train.fingerprint() != train.fingerprint()


class Malicious:
    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> object:
        return self.call


@pytest.mark.parametrize("file", ["data_batch_2", "test_batch", "batches.meta"])
@pytest.mark.parametrize(
    ("function", "name"), [(os.system, "posix.system"), (eval, "__builtin__.eval"), (np.load, "numpy.load")]
)
def test_a_file_that_wants_code_run_is_refused(tmp_path: Path, file: str, function: object, name: str):
    cifar10(tmp_path)
    victim = tmp_path / "victim"
    argument = f"touch {victim}" if function is os.system else f"open({str(victim)!r}, 'w')"
    (tmp_path / file).write_bytes(pickle.dumps({b"data": Malicious(function, argument)}, 2))
    with pytest.raises(
        TeddyError, match=rf"{file}: not a file of CIFAR's \(asks for '{name}', which no CIFAR file needs"
    ):
        open_catalogue(str(tmp_path))
    assert not victim.exists()


MISTAKES = {
    "a missing batch": (lambda root: (root / "data_batch_4").unlink(), "data_batch_4: is missing; unpack the data set"),
    "cut": (
        lambda root: (root / "data_batch_4").write_bytes((root / "data_batch_4").read_bytes()[:500]),
        "data_batch_4: not a file of CIFAR's",
    ),
    "text": (lambda root: (root / "test_batch").write_text("hello"), "test_batch: not a file of CIFAR's"),
    "empty": (lambda root: (root / "test_batch").write_bytes(b""), "test_batch: not a file of CIFAR's"),
    "a list": (lambda root: dump(root / "test_batch", [1]), "no table in it"),
    "no names": (lambda root: dump(root / "batches.meta", {b"x": 1}), "batches.meta: .*no 'label_names'"),
    "no data": (lambda root: dump(root / "test_batch", {b"labels": [0]}), "no 'data' of 3072 values"),
    "narrow data": (
        lambda root: dump(root / "test_batch", {b"data": pixels(0)[:, :100].copy(), b"labels": [0] * 4}),
        "no 'data' of 3072 values",
    ),
    "other numbers": (
        lambda root: dump(root / "test_batch", {b"data": pixels(0).astype(np.float32), b"labels": [0] * 4}),
        "an array that is not of plain bytes",
    ),
    "too few labels": (
        lambda root: dump(root / "test_batch", {b"data": pixels(0), b"labels": [0]}),
        "no 'labels' for each image",
    ),
    "a label out of range": (
        lambda root: dump(root / "test_batch", {b"data": pixels(0), b"labels": [0, 1, 3, 0]}),
        "label 3 in row 2 is none of 3 classes",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(tmp_path: Path, mistake: str):
    make, message = MISTAKES[mistake]
    make(cifar10(tmp_path))
    with pytest.raises(TeddyError, match=message) as caught:
        open_catalogue(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_folder_of_both_has_to_be_named_closer(tmp_path: Path):
    cifar10(tmp_path / "cifar-10-batches-py")
    cifar100(tmp_path / "cifar-100-python")
    with pytest.raises(TeddyError, match="holds both cifar-10-batches-py and cifar-100-python; name one"):
        open_catalogue(str(tmp_path))
