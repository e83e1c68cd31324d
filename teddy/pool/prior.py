"""Prior generation: one base network is trained, and its early trajectory is the pool (Algorithm 1, first branch)."""

from collections.abc import Callable
from functools import partial

from torch import nn

from teddy import seeding
from teddy.config import PoolSettings
from teddy.data.augment import draw_change
from teddy.data.loaders import Loader
from teddy.data.source import Source
from teddy.matching.labels import cross_entropy
from teddy.pool.pool import measure_class_means
from teddy.pool.store import Member, write_index, write_teacher
from teddy.run import Run
from teddy.training import accuracy, train_as


def train_pool(settings: PoolSettings, source: Source, run: Run, new_network: Callable[[], nn.Module]) -> None:
    """Train the base from T_b to T_e and no further, leaving its snapshots in the run folder."""
    training, real, test = settings.training, source.train.to(run.device), source.test.to(run.device)
    members: list[Member] = []

    def cache(epoch: int, network: nn.Module) -> None:
        if epoch in settings.epochs:
            name = f"epoch-{epoch:03d}"
            means = measure_class_means(network.eval(), real, source.preprocessing, len(source.classes))
            write_teacher(run, name, network, means)
            score = round(accuracy(network, test, source.preprocessing), 3)
            members.append({"name": name, "epoch": epoch, "accuracy": score})

    loader = Loader(
        real,
        source.preprocessing,
        source.task,
        batch_size=training.batch_size,
        seed=seeding.derive(run.seed, "pool", "order"),
        change=partial(draw_change, **training.augment.model_dump()),
    )
    steps = settings.last_epoch * loader.batches_per_epoch
    with seeding.seeded(run.seed, "pool", "network"), run.stage("pool", f"pool: {settings.network}", steps) as stage:
        network = new_network().to(run.device)
        cache(0, network)
        train_as(
            training,
            network,
            loader,
            lambda logits, batch: cross_entropy(logits, batch.targets),
            stage=stage,
            last_epoch=settings.last_epoch,
            after_epoch=cache,
        )
    write_index(run, settings.network, settings.generation, source.classes, members)
