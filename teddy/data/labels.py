"""Labels as sources write them, numbers or names, → class names and labels 0 … K − 1."""

from collections import Counter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import numpy as np

from teddy.data.listing import Catalogue, Listing
from teddy.errors import TeddyError, unknown


class Written(NamedTuple):
    """The labels of a part as they are written: int64 [N], or an array of text; and where each is to be found."""

    values: np.ndarray
    place: Callable[[int], str]


def number_labels(
    root: Path, names: Sequence[str] | None, train: Written, test: Written | None
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray | None]:
    """Class names, training labels, test labels. Numbers count through `names` where there are any; otherwise the
    classes are what the training part holds, in order."""
    parts = [train] if test is None else [train, test]
    numeric = all(part.values.dtype == np.int64 for part in parts)
    if names is None:
        known = np.unique(train.values if numeric else train.values.astype(str)).tolist()
    else:
        known = list(range(len(names))) if numeric else list(names)
    classes = _told_apart(names) if names is not None else tuple(str(value) for value in known)
    if len(classes) < 2:
        found = f"only '{classes[0]}'" if classes else "none"
        raise TeddyError(f"source {root}: needs images of two classes or more, found {found}")
    if any(not len(part.values) for part in parts):
        raise TeddyError(f"source {root}: a part without images; fetch it again")
    label_of = {value: label for label, value in enumerate(known)}
    numbered = []
    for part in parts:
        distinct, inverse = np.unique(part.values if numeric else part.values.astype(str), return_inverse=True)
        for position, value in enumerate(distinct.tolist()):
            if value not in label_of:
                raise _stray(part.place(int(np.argmax(inverse == position))), value, names)
        numbered.append(np.array([label_of[value] for value in distinct.tolist()], np.int64)[inverse])
    return classes, numbered[0], numbered[1] if test else None


def read_names(path: Path) -> list[str]:
    """One name a line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise TeddyError(f"{path}: cannot be read ({error.strerror}); name a text file, one class a line") from None
    except UnicodeDecodeError:
        raise TeddyError(f"{path}: is no UTF-8 text; write one class name a line") from None
    return [line for line in lines if line.strip()]


def reorder(catalogue: Catalogue, class_order: Path) -> Catalogue:
    """The same with the classes numbered as the lines of a file."""
    order = read_names(class_order)
    if twice := [name for name, count in Counter(order).items() if count > 1]:
        raise TeddyError(f"{class_order}: class '{twice[0]}' is there twice; remove a line")
    for name in order:
        if name not in catalogue.classes:
            raise TeddyError(f"{class_order}: {unknown('class', name, catalogue.classes)}")
    for name in catalogue.classes:
        if name not in order:
            near = get_close_matches(name, order, n=1)
            hint = f" (nearest there: '{near[0]}')" if near else ""
            raise TeddyError(f"{class_order}: class '{name}' is missing{hint}; add a line")
    label_of = np.array([order.index(name) for name in catalogue.classes], np.int64)

    def renumbered(listing: Listing) -> Listing:
        return listing.take(np.arange(len(listing)), label_of[listing.labels])

    test = None if catalogue.test is None else renumbered(catalogue.test)
    return Catalogue(catalogue.kind, tuple(order), renumbered(catalogue.train), test)


def _stray(place: str, value: object, names: Sequence[str] | None) -> TeddyError:
    if names is None:
        return TeddyError(f"{place}: class '{value}' is in the test part only; add it to the training part")
    if isinstance(value, int):
        return TeddyError(f"{place}: label {value} is none of the {len(names)} classes, 0 to {len(names) - 1}; mend it")
    return TeddyError(f"{place}: {unknown('class', str(value), names)}")


def _told_apart(names: Sequence[str]) -> tuple[str, ...]:
    """ImageNet has two cranes and two maillots: their labels are added."""
    counts = Counter(names)
    return tuple(name if counts[name] == 1 else f"{name} ({label})" for label, name in enumerate(names))
