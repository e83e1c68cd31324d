"""Prior generation: one base network is trained, and its early trajectory is the pool (Algorithm 1, first branch)."""

from collections.abc import Callable

from torch import nn

from teddy import seeding
from teddy.checkpoint import Checkpoint
from teddy.config import PoolSettings
from teddy.data.loaders import Loader
from teddy.data.source import Source
from teddy.pool.store import Member, note_members, noted_members, write_member
from teddy.pool.training import teacher_loader, teacher_loss, training_sample
from teddy.run import Run
from teddy.training import start_training, train_as

CHECKPOINT = "pool/training.safetensors"


def make_prior(settings: PoolSettings, base: nn.Module, source: Source, run: Run) -> list[Member]:
    """Train the base up to T_e and no further, leaving its snapshots in the run folder."""
    per_epoch = _loader(settings, source, run).batches_per_epoch
    sample = training_sample(source, run.device)
    each = per_epoch if settings.unit == "epochs" else 1
    names = {number * each: f"{settings.unit[:-1]}-{number:03d}" for number in settings.snapshots}

    def cache(step: int, network: nn.Module) -> None:
        if step in names:
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

    train_base(settings, base, source, run, last=max(names), at=cache)
    return noted_members(run)


def train_base(
    settings: PoolSettings,
    base: nn.Module,
    source: Source,
    run: Run,
    *,
    last: int,
    at: Callable[[int, nn.Module], None] | None = None,
) -> nn.Module:
    """Train up to step `last`, from the checkpoint that an interrupted training has left, if there is one.

    `at` is called at every step, 0 included, with the network as it is then.
    """
    loader = _loader(settings, source, run)
    training = start_training(settings.training, run.engine.place(base))
    checkpoint = Checkpoint(run, CHECKPOINT)
    first, _ = checkpoint.take_up_training(training)

    def keep(step: int, network: nn.Module) -> None:
        if at:
            at(step, network)
        checkpoint.keep_training(training, step)

    going_on = f", going on from step {first}" if first else ""
    with run.stage("pool", f"pool: {settings.network}{going_on}", last - first) as stage:
        if at and not first:
            at(0, training.result)
        result = train_as(
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
    checkpoint.remove()
    return result


def _loader(settings: PoolSettings, source: Source, run: Run) -> Loader:
    return teacher_loader(settings, source, run.engine, seed=seeding.derive(run.seed, "pool", "order"))
