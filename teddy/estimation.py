"""What a run will take, stage by stage, before it runs: a few steps of each are timed, with untrained networks.

The arithmetic of a step does not depend on what has been learnt, so that a handful of steps tells the time of all.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from teddy import seeding
from teddy.config import Config, TrainingSettings
from teddy.data.augment import draw_change
from teddy.data.images import Images
from teddy.data.loaders import Epochs, ahead, endless
from teddy.data.source import Source
from teddy.distilled import DistilledSet
from teddy.engine import Engine, choose_engine
from teddy.methods import METHODS
from teddy.models.several import as_one
from teddy.models.zoo import build_network
from teddy.pool.build import check_pool
from teddy.pool.measuring import measure, running_statistics
from teddy.pool.pool import Pool, Teacher, freeze
from teddy.pool.training import teacher_loader, teacher_loss
from teddy.progress import Stage
from teddy.relabel import Labelled, make_ensemble
from teddy.resolve import check, default_recipe, image_bytes, open_data, pool_bytes, resolve
from teddy.run import pick_device
from teddy.students import (
    CURVE_POINTS,
    ROWS,
    Row,
    num_students,
    student_groups,
    student_loader,
    student_loss,
    student_steps,
)
from teddy.synthesis.groups import make_groups
from teddy.synthesis.passes import Passes
from teddy.synthesis.real import real_images
from teddy.synthesis.size import groups_at_once, groups_side_by_side, usual_passes
from teddy.synthesis.steps import synthesize_images
from teddy.training import Loss, accuracy, make_stepper, start_training

PREPARING = 2, 5  # first steps, which compile and capture: on a CPU, on a GPU
LEAST_STEPS, MOST_STEPS, LONG_ENOUGH = 2, 50, 1.0  # steps timed: as many as fit into a second
WITHOUT_WAITING = 10  # steps that the host may be ahead of a GPU by, as it is in training
ENDLESS = 1_000_000
SAMPLE, FEW = 1000, 64  # images on which a pass over the data is timed, and statistics are made up


@dataclass(frozen=True)
class StageEstimate:
    """A stage: its time, the most memory that it holds on the device, what it leaves on disk; in seconds and bytes."""

    stage: str
    seconds: float
    memory: int
    disk: int


@dataclass(frozen=True)
class _Pace:
    """How long it takes until work runs, and then each step."""

    preparation: float
    step: float

    def of(self, steps: float) -> float:
        return self.preparation + steps * self.step


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
    real = open_data(config, console)
    check(config, real)
    device = pick_device(config.device)
    check_pool(config.pool, real, device)
    return estimate_stages(config, real, choose_engine(config.engine, device))


def estimate_stages(config: Config, source: Source, engine: Engine) -> Iterator[StageEstimate]:
    """One stage after the other, each as soon as it is known."""
    _start_measuring_memory()
    seconds = _pool_seconds(config, source, engine)
    yield StageEstimate("pool", seconds, _peak_memory(), pool_bytes(config.pool, source))
    pool = _untrained_pool(config, source, engine)
    seconds = _synthesis_seconds(config, source, pool, engine)
    yield StageEstimate("synthesis", seconds, _peak_memory(), image_bytes(config, source))
    for network in config.evaluation.networks:
        seconds = _students_seconds(network, config, source, pool, engine)
        yield StageEstimate(f"students: {network}", seconds, _peak_memory(), 0)


def _pool_seconds(config: Config, source: Source, engine: Engine) -> float:
    settings = config.pool
    if settings.folder:
        return 0.0
    loader = partial(teacher_loader, settings, source, engine, seed=0)
    per_epoch = loader().batches_per_epoch
    steps = settings.last * (per_epoch if settings.unit == "epochs" else 1)
    total = 0.0
    if settings.generation == "post":
        steps = 0 if settings.weights else settings.training.epochs * per_epoch
        total += settings.size * settings.pruning.finetuning.epochs * per_epoch  # at most
    pace = _pace_of(settings.network, settings.training, loader, teacher_loss, source, engine.for_steps(steps))
    looked_at = len(source.train) * settings.class_means + len(source.test)
    looking = settings.size * looked_at * _seconds_per_image(config, source, engine, precise=True)
    return settings.bases * pace.of(steps) + total * pace.step + looking


def _synthesis_seconds(config: Config, source: Source, pool: Pool, engine: Engine) -> float:
    settings = config.method
    method = METHODS[settings.name]
    if method.objective is None:
        return 0.0
    groups = make_groups(
        len(source.classes),
        config.ipc,
        classes_per_group=settings.classes_per_group,
        images_per_class=settings.images_per_class,
        made=settings.made(config.ipc),
    )
    shape = (len(source.classes) * config.ipc, source.channels, source.image_size, source.image_size)
    start = torch.randn(shape)
    objective, paced = method.objective(settings), engine.for_steps(usual_passes(start, groups, settings))
    real = real_images(settings, source, engine.device)
    side_by_side = groups_side_by_side(start, groups, pool, objective, engine, config.engine.groups, real)
    at_once = groups_at_once(start[groups[0].rows], engine.device)
    some = groups[: min(at_once, 8 * side_by_side if engine.device.type == "cuda" else 1)]
    augment = settings.augment.model_dump()

    def iterations(stage: Stage) -> None:
        synthesize_images(
            start,
            some,
            pool,
            Passes(objective, paced),
            bounds=source.preprocessing.bounds(torch.empty(0, device=engine.device)),
            change=lambda count, generator: draw_change(count, *shape[2:], generator, **augment),
            iterations=ENDLESS,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            teachers=settings.teachers,
            redraw=settings.redraw,
            in_turn=settings.turns == "one",
            real=real,
            seed=0,
            stage=stage,
            device=engine.device,
            at_once=at_once,
            side_by_side=side_by_side,
        )

    _start_measuring_memory()  # the trial that chose how many groups share a pass is plain, and takes more
    return _pace(iterations, paced).of(settings.iterations * len(groups) / len(some))


def _students_seconds(name: str, config: Config, source: Source, pool: Pool, engine: Engine) -> float:
    evaluation, relabel = config.evaluation, config.relabel
    count = len(source.classes) * config.ipc
    generator = torch.Generator().manual_seed(0)
    shape = (count, source.channels, source.image_size, source.image_size)
    pixels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    images = Images(pixels, torch.arange(len(source.classes)).repeat_interleave(config.ipc))
    distilled = DistilledSet(images, torch.zeros(count, len(source.classes)), source.classes, source.preprocessing)
    teachers = pool.teachers if relabel.teachers == "all" else pool.spread(relabel.teachers)
    suited = engine.for_steps(evaluation.training.epochs * math.ceil(count / evaluation.training.batch_size))

    def labelled() -> Labelled:
        networks = [teacher.network for teacher in teachers[: relabel.at_once]]  # whichever it is their turn
        ensemble = make_ensemble(networks, relabel.average, relabel.temperature, suited, relabel.statistics)
        return Labelled(distilled, lambda images, _: ensemble(images))

    given = labelled()
    test = _seconds_per_image(config, source, engine) * len(source.test) * CURVE_POINTS
    total = 0.0
    paces: dict[tuple[Row, int], _Pace] = {}
    for row in ROWS.values():
        full = row.images == "full"
        training: TrainingSettings = evaluation.full_data if full else evaluation.training
        students = num_students(row, evaluation)
        steps = student_steps(row, evaluation, given, source)
        groups = student_groups(name, row, range(students), evaluation, given, source, engine, config.engine.students)
        alike = row if full else Row("distilled", row.labels)  # a control need not be drawn to be timed
        for size, times in Counter(map(len, groups)).items():
            if (alike, size) not in paces:  # what was prepared for the distilled images serves the control too

                def loader(row: Row = alike, size: int = size) -> Epochs:
                    return student_loader(
                        row, range(size), evaluation, relabel, labelled(), source, seed=config.seed, engine=engine
                    )

                loss = student_loss(row, evaluation, relabel, size)
                paces[alike, size] = _pace_of(name, training, loader, loss, source, engine.for_steps(steps), size)
                total += paces[alike, size].preparation
            total += times * steps * paces[alike, size].step
        total += students * test
    return total


def _pace_of(
    network_name: str,
    settings: TrainingSettings,
    loader: Callable[[], Epochs],
    loss: Loss,
    source: Source,
    engine: Engine,
    at_once: int = 1,
) -> _Pace:
    """Of training a network, or so many at the same time."""

    def train(stage: Stage) -> None:
        with seeding.seeded(0):
            networks = [build_network(network_name, source.task) for _ in range(at_once)]
        step = make_stepper(start_training(settings, engine.place(as_one(networks)).train()), loss, engine)
        for batch in ahead(endless(loader()), engine.device):
            step(batch)
            stage.step()

    return _pace(train, engine)


def _pace(work: Callable[[Stage], None], engine: Engine) -> _Pace:
    """Of work that goes on and on, and tells of every step. Where something is compiled, the second time counts: when
    the run itself comes, the compiler finds in its cache what it has made here."""
    for _ in range(1 + engine.compiles):
        if engine.compiles:
            torch._dynamo.reset()
        clock = _Clock()
        with suppress(_Enough):
            work(clock)
    return clock.pace


class _Enough(Exception):  # noqa: N818
    """Steps have been timed."""


class _Clock:
    """The first steps prepare; then as many as fit into a second tell the time of one, and that is enough."""

    def __init__(self) -> None:
        self._begun, self._prepared, self._done = time.perf_counter(), 0.0, -PREPARING[torch.cuda.is_available()]
        self.pace = _Pace(0.0, 0.0)

    def step(self, _: int = 1, /, **__: float | Tensor) -> None:
        self._done += 1
        if self._done == 0:
            _wait()
            self._prepared = time.perf_counter()
        if self._done <= 0:
            return
        if self._done % WITHOUT_WAITING == 0:
            _wait()
        long_enough = self._done >= MOST_STEPS or time.perf_counter() - self._prepared >= LONG_ENOUGH
        if self._done >= LEAST_STEPS and long_enough:
            _wait()
            each = (time.perf_counter() - self._prepared) / self._done
            self.pace = _Pace(self._prepared - self._begun, each)
            raise _Enough


def _seconds_per_image(config: Config, source: Source, engine: Engine, *, precise: bool = False) -> float:
    """Of a pass over data that only looks, in single precision as teachers are looked at or as students are."""
    network = engine.place(build_network(config.pool.network, source.task))
    some = source.train.take(torch.arange(min(SAMPLE, len(source.train)))).to(engine.device)

    def look(stage: Stage) -> None:
        while True:
            accuracy(network, some, source.preprocessing, None if precise else engine)
            stage.step()

    return _pace(look, replace(engine, compiles=False)).step / len(some)


def _untrained_pool(config: Config, source: Source, engine: Engine) -> Pool:
    few = replace(source, train=source.train.take(torch.arange(min(FEW, len(source.train)))))
    teachers = []
    for number in range(config.pool.size):
        with seeding.seeded(number):
            network = freeze(engine.place(build_network(config.pool.network, source.task)))
        kept, measured = running_statistics(network), measure(network, few, engine.device, class_means=True)
        means, variances = kept.means or measured.means, kept.variances or measured.variances
        teachers.append(Teacher(f"t{number}", 0.0, network, means, variances, measured.class_means))
    return Pool(tuple(teachers))


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _start_measuring_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _peak_memory() -> int:
    """On the GPU since the last call; without one, of the whole process so far."""
    if not torch.cuda.is_available():
        import resource  # not everywhere

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return peak
