"""The one loop that trains a network, for teachers and students alike: they differ in what they pass."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from teddy import seeding
from teddy.config import TrainingSettings
from teddy.data.images import ImageSet, in_order
from teddy.data.loaders import Batch, Epochs, ahead, endless
from teddy.data.preprocessing import Preprocessing
from teddy.engine import Engine, Replayed
from teddy.models.several import Several
from teddy.optimizers import make_optimizer
from teddy.parallel import ALONE, Processes
from teddy.progress import Stage

Loss = Callable[[Tensor, Batch], Tensor]
"""Logits and their batch → the loss, of several networks that of each."""
Stepper = Callable[..., Tensor]
AfterStep = Callable[[int, nn.Module], bool | None]
"""Told the number of steps done and the network to be used; may end the training by returning True."""
EVALUATION_BATCH = 1000


@dataclass(frozen=True)
class Training:
    """What training changes: a network, its optimizer, its moving average. It can be written down and taken up."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    averaged: "MovingAverage | None" = None
    processes: Processes = ALONE
    steppers: dict[tuple[Loss, Engine], Stepper] = field(default_factory=dict)

    def restart(self, network: nn.Module) -> None:
        """Begin anew with this network's weights, in the same place: what was compiled and captured serves again."""
        self.network.load_state_dict(network.state_dict())
        for values in self.optimizer.state.values():
            for value in values.values():
                if isinstance(value, Tensor):
                    value.zero_()
        if self.averaged:
            self.averaged.begun = False
        for stepper in self.steppers.values():
            if isinstance(stepper, Replayed):
                stepper.restart()

    @property
    def result(self) -> nn.Module:
        """What is to be used: the moving average where there is one."""
        return self.averaged.network if self.averaged else self.network

    def state(self) -> dict[str, Tensor]:
        """Everything as tensors by name."""
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        if self.averaged:
            tensors |= {f"averaged.{name}": value for name, value in self.averaged.state_dict().items()}
        for number, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": value for name, value in values.items() if value is not None}
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """As it was when `tensors` were its state."""
        self.steppers.clear()  # what they captured are the tensors of before
        self.network.load_state_dict(_under("network.", tensors))
        if self.averaged:
            self.averaged.load_state_dict(_under("averaged.", tensors))
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in _under("optimizer.", tensors).items():
            number, name = key.split(".")
            state.setdefault(int(number), {})[name] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})


class MovingAverage:
    """An exponential moving average of a network's weights and buffers; it begins with the first that it is given."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.decay = decay
        self.begun = False

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take in the network as it is now."""
        pairs = list(zip(self.network.state_dict().values(), network.state_dict().values(), strict=True))
        if not self.begun:
            torch._foreach_copy_([own for own, _ in pairs], [other for _, other in pairs])
            self.begun = True
            return
        own, other = zip(*(pair for pair in pairs if pair[0].is_floating_point()), strict=True)
        torch._foreach_lerp_(list(own), list(other), 1 - self.decay)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything as tensors by name."""
        return {**self.network.state_dict(), "begun": torch.tensor(self.begun)}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """As it was when `tensors` were its state."""
        self.begun = bool(tensors.pop("begun"))
        self.network.load_state_dict(tensors)


def train(
    training: Training,
    loader: Epochs,
    loss: Loss,
    rate: Callable[[float], float],
    *,
    steps: range,
    seed: int,
    stage: Stage,
    engine: Engine,
    after_step: AfterStep | None = None,
) -> nn.Module:
    """Train through `steps` and return what is to be used: the network or its average.

    `rate` gives the factor on the learning rate at a fractional epoch. What the network itself draws, as dropout does,
    comes from `seed` and the step's number, so that training can be taken up anywhere.
    """
    network, optimizer, per_epoch = training.network, training.optimizer, loader.batches_per_epoch
    schedule = LambdaLR(optimizer, lambda step: rate((steps.start + step) / per_epoch))
    make_step = make_stepper(training, loss, training.processes.suited(engine.for_steps(len(steps))))
    network.train()
    with seeding.seeded(seed):
        for step, batch in zip(steps, ahead(endless(loader, steps.start), engine.device), strict=False):
            torch.manual_seed(seeding.derive(seed, "step", step, *training.processes.own))
            value = make_step(batch)
            schedule.step()
            enough = after_step and after_step(step + 1, training.result)
            stage.step(loss=value)
            if enough:
                break
    return training.result


def make_stepper(training: Training, loss: Loss, engine: Engine) -> Callable[[Batch], Tensor]:
    """One step on a batch, as a function that gives the loss."""
    if (loss, engine) not in training.steppers:
        training.steppers[loss, engine] = _prepared(training, loss, engine)
    step = training.steppers[loss, engine]
    return lambda batch: step(*(part for part in batch if part is not None))


@cache  # the same function for the same loss, by which steppers are found
def of_each(loss: Loss, count: int) -> Loss:
    """A loss for each of `count` networks that share a batch: what it is on the network's own part."""

    def losses(logits: Tensor, batch: Batch) -> Tensor:
        parts = zip(logits.chunk(count), batch.parts(count), strict=True)
        return torch.stack([loss(some, part) for some, part in parts])

    return losses


def _prepared(training: Training, loss: Loss, engine: Engine) -> Stepper:
    network, optimizer, processes = training.network, training.optimizer, training.processes
    forward = processes.joined(network, _forward(engine, processes.network(network)))

    def step(*parts: Tensor) -> Tensor:
        batch = Batch(*parts)
        with engine.autocast():
            logits = forward(batch.images)
        part, value = processes.mean(loss(logits, batch), len(batch.images))
        optimizer.zero_grad()
        part.sum().backward()  # so that no network's gradient depends on how many there are
        optimizer.step()
        if training.averaged:
            training.averaged.update(network)
        return value.mean()

    return engine.replayed(step)


def _forward(engine: Engine, network: nn.Module) -> Callable[..., Tensor]:
    fit = partial(_fit_for, engine)
    return network.prepared(engine, fit) if isinstance(network, Several) else engine.compiled(fit(network))


def _fit_for(engine: Engine, network: nn.Module) -> nn.Module:
    if not engine.fuses:
        return network
    from teddy.models.fast_layers import with_fast_layers  # needs Triton, which is not everywhere

    return with_fast_layers(network)


def train_as(
    settings: TrainingSettings,
    training: Training,
    loader: Epochs,
    loss: Loss,
    *,
    seed: int,
    stage: Stage,
    engine: Engine,
    steps: range | None = None,
    after_step: AfterStep | None = None,
) -> nn.Module:
    """`train` on the configured schedule, through all of its epochs or only through `steps`."""
    rate = learning_rate(
        settings.schedule,
        epochs=settings.epochs,
        cosine_slowed=settings.cosine_slowed,
        step_epochs=settings.step_epochs,
        warmup_epochs=settings.warmup_epochs,
    )
    whole = range(settings.epochs * loader.batches_per_epoch)
    return train(
        training, loader, loss, rate, steps=whole if steps is None else steps, seed=seed, stage=stage,
        engine=engine, after_step=after_step,
    )  # fmt: skip


def start_training(settings: TrainingSettings, network: nn.Module, processes: Processes = ALONE) -> Training:
    """The configured optimizer and moving average for a network."""
    optimizer = make_optimizer(
        settings.optimizer,
        network,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
    )
    return Training(network, optimizer, MovingAverage(network, settings.ema) if settings.ema else None, processes)


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
def accuracy(network: nn.Module, images: ImageSet, preprocessing: Preprocessing, engine: Engine | None = None) -> float:
    """Per cent of `images` classified rightly."""
    right = 0
    with evaluating(network), engine.autocast() if engine else nullcontext():
        for part in in_order(images, EVALUATION_BATCH):
            right += int((network(preprocessing.normalise(part.pixels)).argmax(1) == part.labels).sum())
    return 100 * right / len(images)


def is_finite(network: nn.Module) -> bool:
    """Whether its numbers are: a training that has gone wrong leaves some that are not."""
    return all(bool(value.isfinite().all()) for value in network.state_dict().values())


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """In evaluation mode inside, as it was outside."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
