"""The pool stage: weak teachers from one base network."""

from functools import partial

from torch import nn

from teddy.config import PoolSettings
from teddy.data.source import Source, Task
from teddy.errors import TeddyError
from teddy.models.zoo import build_network, normalisation_layers
from teddy.pool.pool import Pool
from teddy.pool.prior import train_pool
from teddy.pool.store import INDEX, read_pool
from teddy.run import Run


def build_pool(settings: PoolSettings, source: Source, run: Run) -> Pool:
    """The pool of this run: made and left in its folder, if it is not there yet, and read."""
    new_network = partial(new_teacher, settings.network, source.task)
    if not run.has(INDEX):
        train_pool(settings, source, run, new_network)
    return read_pool(run, new_network)


def new_teacher(name: str, task: Task) -> nn.Module:
    """An untrained teacher, which must keep the running statistics that Eq. 6 compares with."""
    network = build_network(name, task)
    if not normalisation_layers(network):
        raise TeddyError(
            f"pool.network '{name}': has no BatchNorm, whose statistics Eq. 6 needs; take convnet-bn or resnet18"
        )
    return network
