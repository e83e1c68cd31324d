"""The main path, on one page. Each stage takes what the one before left in the run folder and leaves one artefact."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from teddy.config import Config, PoolConfig
from teddy.data.source import Source, open_source
from teddy.distilled import DistilledSet, find_distilled, read_distilled
from teddy.engine import choose_engine
from teddy.errors import TeddyError
from teddy.estimation import StageEstimate, estimate_stages
from teddy.evaluation import Results, evaluate_students
from teddy.pool.build import build_pool, check_pool
from teddy.pool.existing import check_fits
from teddy.pool.store import read_index, read_pool
from teddy.relabel import relabel
from teddy.report.members import ShownMember, shown_members, student_distances
from teddy.report.page import make_page
from teddy.resolve import bytes_needed, check, default_recipe, pool_bytes, pool_recipe, resolve, resolve_pool
from teddy.run import Run, existing_run, new_run, pick_device
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
    real = _open(config, console)
    check(config, real)
    check_pool(config.pool, real, pick_device(config.device))
    space = bytes_needed(config, real)
    with new_run(Path(out), config, bytes_needed=space, overwrite=overwrite, console=console) as run:
        run.say(_told(real, recipe))
        return _finish(config, real, run)


def evaluate(
    folder: str | Path, *, networks: Sequence[str] = (), seeds: int | None = None, console: Console | None = None
) -> Outcome:
    """Train further students on a run's distilled set and its controls: other networks, or more seeds."""
    with existing_run(Path(folder), console) as (run, config):
        change: dict[str, Any] = {"networks": tuple(networks)} if networks else {}
        change |= {"seeds": seeds, "full_data_seeds": min(seeds, config.evaluation.full_data_seeds)} if seeds else {}
        config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update=change)})
        real = _open(config, console)
        check(config, real)
        return _finish(config, real, run)


def estimate(
    source: str | Path | None = None,
    *,
    ipc: int | None = None,
    method: str | None = None,
    recipe: str | Path | None = None,
    pool: str | Path | None = None,
    settings: Mapping[str, Any] | Iterable[str] = (),
    console: Console | None = None,
) -> Iterator[StageEstimate]:
    """What `distill` with the same arguments would take: time, memory and disk of each stage, from a few steps."""
    recipe = recipe or default_recipe(source, ipc=ipc, method=method)
    config = resolve(source, ipc=ipc, method=method, recipe=recipe, settings=settings, pool=pool)
    real = _open(config, console)
    check(config, real)
    device = pick_device(config.device)
    check_pool(config.pool, real, device)
    return estimate_stages(config, real, choose_engine(config.engine, device))


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
    real = _open(config, console)
    check_pool(config.pool, real, pick_device(config.device))
    space = pool_bytes(config.pool, real)
    with new_run(Path(out), config, bytes_needed=space, overwrite=overwrite, console=console) as run:
        run.say(_told(real, recipe))
        run.note_source(real.describe())
        build_pool(config.pool, real, run)
        run.complete()
        return run.folder


def show_pool(
    folder: str | Path, *, student: str | Path | None = None, console: Console | None = None
) -> list[ShownMember]:
    """A pool's members; with the folder of a run in `student`, how far each is from a student of its distilled set."""
    index = read_index(Path(folder))
    if student is None:
        return shown_members(index)
    with existing_run(Path(student), console) as (run, config):
        real = _open(config, console)
        check_fits(Path(folder), real)
        images = synthesize(config.method, real, (own := read_pool(run, real.task)), run, ipc=config.ipc)
        labelled = relabel(config, images, own, real, run)
        distances = student_distances(Path(folder), config, labelled, real, run)
    return shown_members(index, distances)


def write_report(folder: str | Path, *, console: Console | None = None) -> Path:
    """Write a run's page anew from what its folder holds."""
    with existing_run(Path(folder), console) as (run, config):
        return make_page(run, config)


def load(folder: str | Path, *, temperature: float = 1.0) -> DistilledSet:
    """The distilled set in a run folder, or in the folder of a set on its own."""
    return read_distilled(find_distilled(Path(folder)), temperature)


def _told(real: Source, recipe: str | Path | None) -> str:
    return f"{real.summary()}; {f'recipe {recipe}' if recipe else 'no recipe, the default settings'}"


def _open(config: PoolConfig, console: Console | None) -> Source:
    data = config.data
    source = open_source(
        data.source,
        image_size=data.image_size,
        test_share=data.test_share,
        class_order=Path(data.class_order) if data.class_order else None,
        loader=data.loader,
        workers=data.workers,
        skip_bad=data.skip_bad,
        device=pick_device(config.device),
        console=console or Console(stderr=True),
    )
    return source.normalised_by(data.mean, data.std) if data.mean and data.std else source


def _finish(config: Config, source: Source, run: Run) -> Outcome:
    run.note_source(source.describe())
    pool = build_pool(config.pool, source, run)  # weak teachers from one base network
    images = synthesize(config.method, source, pool, run, ipc=config.ipc)  # Taylor-approximated matching
    labelled = relabel(config, images, pool, source, run)  # ensemble soft labels
    results = evaluate_students(config.evaluation, config.relabel, labelled, source, run)  # and the controls
    page = make_page(run, config)  # a page a person would rather look at
    run.complete()
    return Outcome(run.folder, results, page)
