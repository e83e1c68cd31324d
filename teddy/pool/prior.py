"""Prior generation: a base network is trained, and its early trajectory is the pool (Algorithm 1, first branch).

The paper has one base; the expectation over θ⁽⁰⁾ ~ Θ that it starts from allows several.
"""

from collections.abc import Callable, Container
from functools import partial

from torch import nn

from teddy import seeding
from teddy.checkpoint import Checkpoint
from teddy.config import PoolSettings
from teddy.data.loaders import Loader
from teddy.data.source import Source
from teddy.errors import TeddyError
from teddy.models.zoo import build_network
from teddy.parallel import ALONE, Processes, together
from teddy.pool.store import Member, note_members, noted_members, write_member
from teddy.pool.training import teacher_loader, teacher_loss, training_sample
from teddy.run import Run
from teddy.training import start_training, train_as

CHECKPOINT = "pool/training.safetensors"


def make_prior(settings: PoolSettings, base: Callable[[int], nn.Module], source: Source, run: Run) -> list[Member]:
    """Train every base up to T_e and no further, leaving its snapshots in the run folder; gives them weakest first."""
    for number in range(settings.bases):
        _make_trajectory(settings, base(number), number, source, run)
    return sorted(noted_members(run), key=lambda member: member["step"]) if run.world.first else []


def _make_trajectory(settings: PoolSettings, base: nn.Module, number: int, source: Source, run: Run) -> None:
    per_epoch = _loader(settings, source, run, ALONE).batches_per_epoch
    sample = training_sample(source, run.device)
    each = per_epoch if settings.unit == "epochs" else 1
    whose = f"base-{number:03d}-" if settings.bases > 1 else ""
    names = {place * each: f"{whose}{settings.unit[:-1]}-{place:03d}" for place in settings.snapshots}
    mine = set(names.values())
    there = {member["name"] for member in noted_members(run)}
    if run.world.looked(settings.bases > 1 and mine <= there):
        run.sweep(_checkpoint(number))
        return

    def cache(step: int, network: nn.Module) -> None:
        member = write_member(
            run,
            source,
            network,
            sample,
            network_name=settings.network,
            name=names[step],
            step=step,
            epoch=step / per_epoch,
            class_means=settings.class_means,
        )
        # Those that come again after an interruption take the place of what was there.
        earlier = [each for each in noted_members(run) if each["name"] not in mine or each["step"] < step]
        note_members(run, [*earlier, member])

    train_base(settings, base, source, run, number=number, last=max(names), at=names, then=cache)


def train_base(
    settings: PoolSettings,
    base: nn.Module,
    source: Source,
    run: Run,
    *,
    number: int = 0,
    last: int,
    at: Container[int],
    then: Callable[[int, nn.Module], None],
) -> None:
    """Train base `number` up to step `last`, from the checkpoint that an interrupted training has left, if any.

    `then` is called by the first process after the steps in `at`, 0 included, with the network as it is then. All
    processes take part where they train together; else the first trains for all.
    """
    train_with = partial(_train, settings, base, source, run, number=number, last=last, at=at, then=then)
    if not run.data_parallel:
        run.once("training", partial(train_with, ALONE))
        return
    with together(run.world, run.device, synchronise_norms=run.synchronise_norms) as processes:
        train_with(processes)


def _train(
    settings: PoolSettings,
    base: nn.Module,
    source: Source,
    run: Run,
    processes: Processes,
    *,
    number: int,
    last: int,
    at: Container[int],
    then: Callable[[int, nn.Module], None],
) -> None:
    loader = _loader(settings, source, run, processes, number)
    training = start_training(settings.training, run.engine.place(base), processes)
    checkpoint = Checkpoint(run, _checkpoint(number))
    first, _ = checkpoint.take_up_training(training)
    if processes.largest(first) != first:
        raise TeddyError(
            f"{run.folder / _checkpoint(number)}: the processes do not see the same file; run the same command again"
        )

    def call(step: int, network: nn.Module) -> None:
        if step in at:
            if processes.first:
                then(step, network)
            processes.wait()  # here, on the CPU, and not in the middle of the next step

    def keep(step: int, network: nn.Module) -> None:
        call(step, network)
        if processes.first:
            checkpoint.keep_training(training, step)

    going_on = f", going on from step {first}" if first else ""
    which = f", base {number + 1} of {settings.bases}" if settings.bases > 1 else ""
    title = f"pool: {settings.network}{which}{going_on}"
    with run.stage(
        "/".join(["pool", *map(str, _path(number))]), title, last - first, smaller="pool.training.batch_size"
    ) as stage:
        if not first:
            call(0, training.result)
        train_as(
            settings.training,
            training,
            loader,
            teacher_loss,
            seed=seeding.derive(run.seed, "pool", "network", *_path(number)),
            steps=range(first, last),
            stage=stage,
            engine=run.engine,
            after_step=keep,
        )
    if processes.first:
        checkpoint.remove()


def untrained(settings: PoolSettings, source: Source, seed: int, number: int = 0) -> nn.Module:
    """Base `number` as it starts."""
    with seeding.seeded(seed, "pool", "network", *_path(number)):
        return build_network(settings.network, source.task)


def _path(number: int) -> tuple[int, ...]:
    return (number,) if number else ()  # a first base is the one of a pool that has no other


def _checkpoint(number: int) -> str:
    return f"pool/training-{number:03d}.safetensors" if number else CHECKPOINT


def _loader(settings: PoolSettings, source: Source, run: Run, processes: Processes, number: int = 0) -> Loader:
    seed = seeding.derive(run.seed, "pool", "order", *_path(number))
    part = (processes.rank, processes.size)
    return teacher_loader(settings, source, run.engine, seed=seed, part=part)
