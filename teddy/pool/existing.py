"""A pool that is there already, made by 'teddy pool' or by another run: looked at, checked, taken over."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from teddy.config import read_recipe
from teddy.data.source import Source
from teddy.errors import TeddyError
from teddy.files import copy_sum
from teddy.pool.store import FOLDER, INDEX, read_index
from teddy.run import CONFIG, Run


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


def take_over(folder: Path, run: Run) -> None:
    """Link or copy a finished pool into the run folder, so that the run stays whole when the other one goes."""
    names = [f"{member['name']}.safetensors" for member in read_index(folder)["members"]]
    (run.folder / FOLDER).mkdir(exist_ok=True)
    for name in [*names, Path(INDEX).name]:  # the index last: it says that all are there
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
    run.say(f"pool: {len(names)} teachers taken over from {folder}")


def _shown(classes: Sequence[str]) -> str:
    few = ", ".join(f"'{name}'" for name in classes[:3])
    return few if len(classes) <= 3 else f"{few}, … ({len(classes)} classes)"
