"""Prior generation: one base network is trained, and its early trajectory is the pool (Algorithm 1, first branch)."""

from collections.abc import Callable, Container
from functools import partial

from torch import nn

from teddy import seeding
from teddy.checkpoint import Checkpoint
from teddy.config import PoolSettings
from teddy.data.loaders import Loader
from teddy.data.source import Source
from teddy.errors import TeddyError
from teddy.parallel import ALONE, Processes, together
from teddy.pool.store import Member, note_members, noted_members, write_member
from teddy.pool.training import teacher_loader, teacher_loss, training_sample
from teddy.run import Run
from teddy.training import start_training, train_as

CHECKPOINT = "pool/training.safetensors"


def make_prior(settings: PoolSettings, base: nn.Module, source: Source, run: Run) -> list[Member]:
    """Train the base up to T_e and no further, leaving its snapshots in the run folder."""
    per_epoch = _loader(settings, source, run, ALONE).batches_per_epoch
    sample = training_sample(source, run.device)
    each = per_epoch if settings.unit == "epochs" else 1
    names = {number * each: f"{settings.unit[:-1]}-{number:03d}" for number in settings.snapshots}

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
        note_members(run, [*(earlier for earlier in noted_members(run) if earlier["step"] < step), member])

    train_base(settings, base, source, run, last=max(names), at=names, then=cache)
    return noted_members(run) if run.world.first else []


def train_base(
    settings: PoolSettings,
    base: nn.Module,
    source: Source,
    run: Run,
    *,
    last: int,
    at: Container[int],
    then: Callable[[int, nn.Module], None],
) -> None:
    """Train up to step `last`, from the checkpoint that an interrupted training has left, if there is one.

    `then` is called by the first process after the steps in `at`, 0 included, with the network as it is then. All
    processes take part where they train together; else the first trains for all.
    """
    train_with = partial(_train, settings, base, source, run, last=last, at=at, then=then)
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
    last: int,
    at: Container[int],
    then: Callable[[int, nn.Module], None],
) -> None:
    loader = _loader(settings, source, run, processes)
    training = start_training(settings.training, run.engine.place(base), processes)
    checkpoint = Checkpoint(run, CHECKPOINT)
    first, _ = checkpoint.take_up_training(training)
    if processes.largest(first) != first:
        raise TeddyError(
            f"{run.folder / CHECKPOINT}: the processes do not see the same file; run the same command again"
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
    title = f"pool: {settings.network}{going_on}"
    with run.stage("pool", title, last - first, smaller="pool.training.batch_size") as stage:
        if not first:
            call(0, training.result)
        train_as(
            settings.training,
            training,
            loader,
            teacher_loss,
            seed=seeding.derive(run.seed, "pool", "network"),
            steps=range(first, last),
            stage=stage,
            engine=run.engine,
            after_step=keep,
        )
    if processes.first:
        checkpoint.remove()


def _loader(settings: PoolSettings, source: Source, run: Run, processes: Processes) -> Loader:
    seed, part = seeding.derive(run.seed, "pool", "order"), (processes.rank, processes.size)
    return teacher_loader(settings, source, run.engine, seed=seed, part=part)
