"""A pool on its own: made for later distillations, and looked at."""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from teddy.pool.build import build_pool, check_pool
from teddy.pool.existing import check_fits
from teddy.pool.store import read_index, read_pool
from teddy.relabel import relabel
from teddy.report.members import ShownMember, shown_members, student_distances
from teddy.resolve import open_data, opening_line, pool_bytes, pool_recipe, resolve_pool
from teddy.run import existing_run, new_run, pick_device, training_processes
from teddy.synthesis.stage import synthesize


def make_pool(
    source: str | Path | None = None,
    *,
    out: str | Path,
    network: str | None = None,
    weights: str | Path | None = None,
    generation: str | None = None,
    recipe: str | Path | None = None,
    settings: Mapping[str, Any] | Iterable[str] = (),
    overwrite: bool = False,
    console: Console | None = None,
) -> Path:
    """Make a pool of weak teachers on its own, for `distill(…, pool=…)`; `weights` are those of its base network."""
    recipe = recipe or pool_recipe(source)
    arguments = {"pool.network": network, "pool.weights": weights, "pool.generation": generation}
    config = resolve_pool(source, recipe=recipe, arguments=arguments, settings=settings)
    real = open_data(config, console)
    check_pool(config.pool, real, pick_device(config.device), training_processes(config))
    space = pool_bytes(config.pool, real)
    with new_run(Path(out), config, bytes_needed=space, overwrite=overwrite, console=console) as run:
        run.say(opening_line(real, recipe))
        run.once("source", partial(run.note_source, real.describe(), real.seen))
        build_pool(config.pool, real, run)
        run.once("complete", run.complete)
        return run.folder


def show_pool(
    folder: str | Path, *, student: str | Path | None = None, console: Console | None = None
) -> list[ShownMember]:
    """A pool's members; with the folder of a run in `student`, how far each is from a student of its distilled set."""
    index = read_index(Path(folder))
    if student is None:
        return shown_members(index)
    with existing_run(Path(student), console) as (run, config):
        real = open_data(config, console)
        check_fits(Path(folder), real)
        images = synthesize(config.method, real, (own := read_pool(run, real.task)), run, ipc=config.ipc)
        labelled = relabel(config, images, own, real, run)
        distances = student_distances(Path(folder), config, labelled, real, run)
    return shown_members(index, distances)
