"""A pool that is there already, made by 'teddy pool' or by another run: looked at, checked, taken over."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from teddy.config import PoolSettings
from teddy.data.source import Source
from teddy.errors import TeddyError
from teddy.files import copy_sum
from teddy.parsing import read_recipe
from teddy.pool.store import FOLDER, INDEX, Member, read_index
from teddy.run import CONFIG, Run

CHOOSING = ("pool.first", "pool.last", "pool.every")  # settings that are left to whoever uses a pool of snapshots


def how_made(folder: Path) -> dict[str, Any]:
    """The configuration that made a finished pool."""
    read_index(folder)
    if not (folder / CONFIG).is_file():
        raise TeddyError(f"--pool {folder}: the {CONFIG} that says how it was made is missing; copy it again")
    return read_recipe(folder / CONFIG)


def check_fits(folder: Path, source: Source) -> None:
    """Raise unless the pool's teachers know these classes, in this order, and see such images."""
    index = read_index(folder)
    if index["classes"] != list(source.classes):
        raise TeddyError(
            f"--pool {folder}: its teachers know {_shown(index['classes'])}, and the data has "
            f"{_shown(source.classes)}; make a pool of this data with 'teddy pool'"
        )
    shape = [source.channels, source.image_size, source.image_size]
    if index["shape"] != shape:
        theirs, ours = (" × ".join(map(str, numbers)) for numbers in (index["shape"], shape))
        raise TeddyError(
            f"--pool {folder}: its teachers see images of {theirs}, and these are {ours}; "
            f"make a pool of this data with 'teddy pool'"
        )


def chosen_members(settings: PoolSettings, folder: Path) -> list[Member]:
    """The snapshots of a pool that `first`, `last` and `every` name, or all of its pruned members."""
    index = read_index(folder)
    if index["generation"] == "post":
        return index["members"]
    wanted = settings.snapshots
    times = [member["epoch"] if settings.unit == "epochs" else member["step"] for member in index["members"]]
    if missing := sorted(set(wanted).difference(times)):
        there = ", ".join(f"{time:g}" for time in sorted(set(times)))
        raise TeddyError(
            f"--pool {folder}: has no snapshot after {missing[0]} {settings.unit}, but after {there}; choose among "
            "them with pool.first, pool.last and pool.every"
        )
    return [member for member, time in zip(index["members"], times, strict=True) if time in wanted]


def take_over(settings: PoolSettings, folder: Path, run: Run) -> None:
    """Link or copy a finished pool, or what is chosen of it, into the run folder, so that the run stays whole when the
    other one goes."""
    members = chosen_members(settings, folder)
    (run.folder / FOLDER).mkdir(exist_ok=True)
    for name in [f"{member['name']}.safetensors" for member in members]:
        file, place = folder / FOLDER / name, run.folder / FOLDER / name
        if not file.is_file():
            raise TeddyError(f"--pool {folder}: {name} is missing; copy the pool again")
        place.unlink(missing_ok=True)
        copy_sum(folder, run.folder, f"{FOLDER}/{name}")
        try:
            os.link(file, place)
        except OSError:  # another file system
            beside = place.with_name(f".{name}.part")
            shutil.copyfile(file, beside)
            beside.replace(place)
    run.write_json(INDEX, {**read_index(folder), "members": members})
    run.say(f"pool: {len(members)} teachers taken over from {folder}")


def _shown(classes: Sequence[str]) -> str:
    few = ", ".join(f"'{name}'" for name in classes[:3])
    return few if len(classes) <= 3 else f"{few}, … ({len(classes)} classes)"
