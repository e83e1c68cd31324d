"""The main path, on one page. Each stage takes what the one before left in the run folder and leaves one artefact."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from teddy.config import Config
from teddy.data.source import Source
from teddy.distilled import DistilledSet, find_distilled, read_distilled
from teddy.errors import TeddyError
from teddy.evaluation import Results, evaluate_students
from teddy.pool.build import build_pool, check_pool
from teddy.relabel import relabel
from teddy.report.page import REPORT, make_page
from teddy.resolve import bytes_needed, check, default_recipe, open_data, opening_line, resolve
from teddy.run import Run, existing_run, new_run, pick_device, training_processes
from teddy.synthesis.stage import synthesize


@dataclass(frozen=True)
class Outcome:
    """What a run has left: its folder, the students' results, the page that shows them."""

    folder: Path
    results: Results
    report: Path


def distill(
    source: str | Path | None = None,
    *,
    ipc: int | None = None,
    out: str | Path,
    method: str | None = None,
    recipe: str | Path | None = None,
    pool: str | Path | None = None,
    settings: Mapping[str, Any] | Iterable[str] = (),
    overwrite: bool = False,
    console: Console | None = None,
) -> Outcome:
    """Distil real images into `ipc` synthetic ones per class, and measure what they are worth beside their controls.

    `settings` change the recipe: {"method.iterations": 400} or ["method.iterations=400"]. Without a recipe the shipped
    one for the source is taken, if any. `pool` is a folder whose teachers are used instead of new ones. The same call
    on the same folder goes on where it was.
    """
    if pool is not None and Path(pool).resolve() == Path(out).resolve():
        raise TeddyError(f"--out {out}: is the folder of --pool; name another")
    recipe = recipe or default_recipe(source, ipc=ipc, method=method)
    config = resolve(source, ipc=ipc, method=method, recipe=recipe, settings=settings, pool=pool)
    real = open_data(config, console)
    check(config, real)
    check_pool(config.pool, real, pick_device(config.device), training_processes(config))
    space = bytes_needed(config, real)
    with new_run(Path(out), config, bytes_needed=space, overwrite=overwrite, console=console) as run:
        run.say(opening_line(real, recipe))
        return _finish(config, real, run)


def evaluate(
    folder: str | Path, *, networks: Sequence[str] = (), seeds: int | None = None, console: Console | None = None
) -> Outcome:
    """Train further students on a run's distilled set and its controls: other networks, or more seeds."""
    with existing_run(Path(folder), console) as (run, config):
        change: dict[str, Any] = {"networks": tuple(networks)} if networks else {}
        change |= {"seeds": seeds, "full_data_seeds": min(seeds, config.evaluation.full_data_seeds)} if seeds else {}
        config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update=change)})
        real = open_data(config, console)
        check(config, real)
        return _finish(config, real, run)


def write_report(folder: str | Path, *, console: Console | None = None) -> Path:
    """Write a run's page anew from what its folder holds."""
    with existing_run(Path(folder), console) as (run, config):
        return make_page(run, config)


def load(folder: str | Path, *, temperature: float = 1.0) -> DistilledSet:
    """The distilled set in a run folder, or in the folder of a set on its own."""
    return read_distilled(find_distilled(Path(folder)), temperature)


def _finish(config: Config, source: Source, run: Run) -> Outcome:
    run.once("source", partial(run.note_source, source.describe(), source.seen))
    pool = build_pool(config.pool, source, run)  # weak teachers from one base network
    images = synthesize(config.method, source, pool, run, ipc=config.ipc)  # Taylor-approximated matching
    labelled = relabel(config, images, pool, source, run)  # ensemble soft labels
    results = evaluate_students(config.evaluation, config.relabel, labelled, source, run)  # and the controls
    run.once("page", partial(make_page, run, config))  # a page a person would rather look at
    run.once("complete", run.complete)
    return Outcome(run.folder, results, run.folder / REPORT)
