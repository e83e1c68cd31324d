"""The one loop that trains a network, for teachers and students alike: they differ in what they pass."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from teddy.config import TrainingSettings
from teddy.data.images import ImageSet, in_order
from teddy.data.loaders import Batch, Epochs
from teddy.data.preprocessing import Preprocessing
from teddy.progress import Stage

Loss = Callable[[Tensor, Batch], Tensor]
EVALUATION_BATCH = 1000


def train(
    network: nn.Module,
    loader: Epochs,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    rate: Callable[[float], float],
    *,
    epochs: range,
    stage: Stage,
    ema: float | None = None,
    after_epoch: Callable[[int, nn.Module], None] | None = None,
) -> nn.Module:
    """Train `network` through `epochs`, numbered from 0, and return what is to be used: it or its moving average.

    `rate` gives the factor on the learning rate at a fractional epoch; `after_epoch` is called with the number of
    epochs done and the network to be used.
    """
    averaged = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(ema), use_buffers=True) if ema else None
    result: nn.Module = averaged.module if averaged else network
    per_epoch = loader.batches_per_epoch
    schedule = LambdaLR(optimizer, lambda step: rate(epochs.start + step / per_epoch))
    for epoch in epochs:
        network.train()
        for batch in loader.epoch(epoch):
            value = loss(network(batch.images), batch)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
            if averaged:
                averaged.update_parameters(network)
            stage.step(loss=value)
        if after_epoch:
            after_epoch(epoch + 1, result)
    return result


def train_as(
    settings: TrainingSettings,
    network: nn.Module,
    loader: Epochs,
    loss: Loss,
    *,
    stage: Stage,
    last_epoch: int | None = None,
    after_epoch: Callable[[int, nn.Module], None] | None = None,
) -> nn.Module:
    """`train` as the configuration says, up to `last_epoch` where that comes before the schedule's end."""
    return train(
        network,
        loader,
        loss,
        make_optimizer(
            settings.optimizer,
            network,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            momentum=settings.momentum,
        ),
        learning_rate(
            settings.schedule,
            epochs=settings.epochs,
            cosine_slowed=settings.cosine_slowed,
            step_epochs=settings.step_epochs,
            warmup_epochs=settings.warmup_epochs,
        ),
        epochs=range(last_epoch or settings.epochs),
        ema=settings.ema,
        stage=stage,
        after_epoch=after_epoch,
    )


def make_optimizer(
    name: Literal["sgd", "adamw"], network: nn.Module, *, learning_rate: float, weight_decay: float, momentum: float
) -> torch.optim.Optimizer:
    """SGD with momentum, or AdamW with the usual betas."""
    parameters = network.parameters()
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=learning_rate, momentum=momentum, weight_decay=weight_decay)
    return torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.999), weight_decay=weight_decay)


def learning_rate(
    schedule: Literal["cosine", "step", "constant"],
    *,
    epochs: int,
    cosine_slowed: float = 1.0,
    step_epochs: int = 30,
    warmup_epochs: int = 0,
) -> Callable[[float], float]:
    """The factor on the learning rate as a function of the fractional epoch.

    The cosine is ½(1 + cos(π e / ζE)), ζ = `cosine_slowed`: at ζ = 1 it ends at 0, at ζ = 2 at ½. Warm-up rises
    linearly from a hundredth; the rest of the schedule begins after it.
    """

    def factor(epoch: float) -> float:
        if epoch < warmup_epochs:
            return 0.01 + 0.99 * epoch / warmup_epochs
        if schedule == "cosine":
            share = (epoch - warmup_epochs) / (epochs - warmup_epochs)
            return (1 + math.cos(math.pi * min(share, 1) / cosine_slowed)) / 2
        if schedule == "step":
            return 0.1 ** math.floor(epoch / step_epochs + 1e-9)
        return 1.0

    return factor


@torch.inference_mode()
def accuracy(network: nn.Module, images: ImageSet, preprocessing: Preprocessing) -> float:
    """Per cent of `images` classified rightly."""
    was_training = network.training
    network.eval()
    right = 0
    for part in in_order(images, EVALUATION_BATCH):
        right += int((network(preprocessing.normalise(part.pixels)).argmax(1) == part.labels).sum())
    network.train(was_training)
    return 100 * right / len(images)
