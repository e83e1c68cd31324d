"""Whether a distilled set is still what was written: no file changed, missing or added, classes as its teachers knew
them."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from teddy.distilled import (
    DESCRIPTION,
    FOLDER,
    Description,
    find_distilled,
    locate_member,
    read_description,
    read_distilled,
    shown,
)
from teddy.errors import TeddyError
from teddy.run import MANIFEST

POOL_INDEX = "pool.json"
SOURCE = "source.json"


def verify(folder: Path, *, pool: Path | None = None) -> list[str]:
    """One line for each thing that is wrong with the set in a run folder or in a folder of its own; none: all is well.

    `pool` is the folder of the teachers, for a set that has left its run.
    """
    place = find_distilled(folder)
    if not os.path.lexists(place / DESCRIPTION):
        raise TeddyError(f"{folder}: neither a distilled set nor a run that has one (no {DESCRIPTION} in it)")
    try:
        description = read_description(place)
    except TeddyError as error:
        return [str(error)]
    findings = [*_description_changed(place), *_files_changed(place, description), *_files_added(place, description)]
    findings += _classes_differ(description, pool or place.absolute().parent / "pool", asked_for=pool is not None)
    if not findings:
        try:
            read_distilled(place)
        except TeddyError as error:
            findings.append(str(error))
    return findings


def _description_changed(place: Path) -> Iterator[str]:
    """The description holds no checksum of itself; the manifest of a complete run does."""
    manifest = place.absolute().parent / MANIFEST
    if place.absolute().name != FOLDER or not manifest.is_file():
        return
    told = _read_json(manifest)
    checksums = told.get("sha256") if isinstance(told, dict) else None
    expected = checksums.get(f"{FOLDER}/{DESCRIPTION}") if isinstance(checksums, dict) else None
    if expected is not None and expected != _sha256(place / DESCRIPTION):
        yield f"{place / DESCRIPTION}: changed since {MANIFEST} was written"


def _files_changed(place: Path, description: Description) -> Iterator[str]:
    for name, checksum in description.checksums.items():
        if not os.path.lexists(place / name):
            yield f"{place / name}: missing"
            continue
        try:
            if _sha256(locate_member(place, name)) != checksum:
                yield f"{place / name}: changed, its checksum is another than {DESCRIPTION} states"
        except TeddyError as error:
            yield str(error)
        except OSError as error:
            yield f"{place / name}: cannot be read ({error.strerror})"


def _files_added(place: Path, description: Description) -> Iterator[str]:
    known = {*description.checksums, DESCRIPTION}
    for parent, directories, files in os.walk(place):
        directories.sort()
        links = [name for name in directories if Path(parent, name).is_symlink()]
        for entry in sorted(files + links):
            name = Path(parent, entry).relative_to(place).as_posix()
            if name not in known:
                yield f"{place}: {shown(name)} is not in {DESCRIPTION}"


def _classes_differ(description: Description, pool: Path, *, asked_for: bool) -> Iterator[str]:
    """The teachers' classes stand in their index, or else in what the run noted of its source."""
    for path in (pool / POOL_INDEX, pool.parent / SOURCE):
        told = _read_json(path) if path.is_file() else None
        teachers = told.get("classes") if isinstance(told, dict) else None
        if not isinstance(teachers, list):
            continue
        if len(teachers) != len(description.classes):
            yield f"classes: the set has {len(description.classes)}, the teachers of {path} have {len(teachers)}"
        for label, (ours, theirs) in enumerate(zip(description.classes, teachers, strict=False)):
            if ours != theirs:
                yield f"classes: label {label} is {shown(ours)} in the set and {shown(str(theirs))} in {path}"
        return
    if asked_for:
        yield f"{pool}: no {POOL_INDEX} with the teachers' classes in it, nor a {SOURCE} beside it"


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
