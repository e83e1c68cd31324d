"""The branch of Algorithm 1: is the base random or early in its training, or well trained?

A network in the middle of its training gains at once when the learning rate falls; one at its end has nothing left to
gain. So a copy is trained for a hundred steps at a learning rate that falls to zero, and the accuracy on training
images, which no test image enters, is compared. On CIFAR-10 (ResNet18, 50 epochs) the gain was 3.8 to 10.7 points up to
epoch 31, 1.3 at epoch 36 and below 0.3 from epoch 41 on (docs/LOG.md).
"""

import copy
from typing import Literal, NamedTuple

import torch
from torch import nn

from teddy import seeding
from teddy.config import PoolSettings
from teddy.data.source import Source
from teddy.engine import Engine
from teddy.optimizers import make_optimizer
from teddy.pool.training import teacher_loader, teacher_loss, training_sample
from teddy.progress import Unwatched
from teddy.training import Training, accuracy, train

STEPS = 100
LEARNING_RATE = 0.01
EARLY_GAIN = 2.0  # percentage points
ABOVE_CHANCE = 2.0  # a network that is right less often than so many times by chance counts as random


class Choice(NamedTuple):
    """How the pool is made, and why."""

    generation: Literal["prior", "post"]
    reason: str


def choose_generation(
    settings: PoolSettings, base: nn.Module | None, source: Source, device: torch.device, seed: int
) -> Choice:
    """As configured, or by the rule above."""
    if settings.generation != "auto":
        return Choice(settings.generation, "as configured")
    if base is None:
        return Choice("prior", "the base is not trained yet")
    images = training_sample(source, device)
    before = accuracy(base, images, source.preprocessing)
    if before < ABOVE_CHANCE * 100 / len(source.classes):
        return Choice("prior", f"the base is no better than chance, {before:.1f} % right")
    gain = accuracy(_annealed(settings, base, source, device, seed), images, source.preprocessing) - before
    told = f"{STEPS} steps at a falling learning rate change its {before:.1f} % by {gain:+.1f}"
    if gain > EARLY_GAIN:
        return Choice("prior", f"the base is early in its training: {told}")
    return Choice("post", f"the base is well trained: {told}")


def _annealed(settings: PoolSettings, base: nn.Module, source: Source, device: torch.device, seed: int) -> nn.Module:
    network = copy.deepcopy(base)
    decay = settings.training.weight_decay
    optimizer = make_optimizer("sgd", network, learning_rate=LEARNING_RATE, weight_decay=decay, momentum=0.9)
    seed = seeding.derive(seed, "pool", "choice")
    engine = Engine(device)
    loader = teacher_loader(settings, source, engine, seed=seed)
    epochs = STEPS / loader.batches_per_epoch
    return train(
        Training(network, optimizer), loader, teacher_loss, lambda epoch: 1 - epoch / epochs,
        steps=range(STEPS), seed=seed, stage=Unwatched(),
        engine=engine,
    )  # fmt: skip
