"""Schedules, optimisers and the loop, against numbers worked out by hand."""

import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from teddy.config import Optimizer
from teddy.data.loaders import Batch, Loader
from teddy.data.preprocessing import Preprocessing
from teddy.data.source import Images, Source, Task
from teddy.engine import Engine
from teddy.matching.labels import cross_entropy
from teddy.optimizers import make_optimizer
from teddy.progress import Unwatched
from teddy.training import MovingAverage, Training, accuracy, learning_rate, train


@pytest.mark.parametrize(
    ("epoch", "slowed", "expected"),
    [
        (0, 1, 1.0),
        (25, 1, (1 + math.sqrt(0.5)) / 2),
        (50, 1, 0.5),
        (100, 1, 0.0),
        (100, 2, 0.5),
        (50, 2, (1 + math.sqrt(0.5)) / 2),
    ],
)
def test_cosine_plain_and_slowed(epoch: float, slowed: float, expected: float):
    assert learning_rate("cosine", epochs=100, cosine_slowed=slowed)(epoch) == pytest.approx(expected)


def test_warm_up_rises_from_a_hundredth_and_the_cosine_follows():
    rate = learning_rate("cosine", epochs=50, warmup_epochs=5)
    assert rate(0) == pytest.approx(0.01)
    assert rate(2.5) == pytest.approx(0.505)
    assert rate(5) == pytest.approx(1.0)
    assert rate(27.5) == pytest.approx(0.5)
    assert rate(50) == pytest.approx(0.0)


def test_steps_divide_by_ten():
    rate = learning_rate("step", epochs=90, step_epochs=30)
    assert [rate(epoch) for epoch in (0, 29.99, 30, 60)] == pytest.approx([1.0, 1.0, 0.1, 0.01])
    assert learning_rate("constant", epochs=90)(80) == 1.0


class Scalar(nn.Module):
    """One weight, so that every step can be done by hand; the input does not matter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        return self.weight.expand(len(images), 2)


def scalar_loader(batches: int) -> Loader:
    images = Images(torch.zeros(batches, 1, 2, 2, dtype=torch.uint8), torch.zeros(batches, dtype=torch.long))
    return Loader(images, Preprocessing((0.0,), (1.0,)), Task(2, 1, 2), batch_size=1, seed=0)


def loss(logits: Tensor, batch: Batch) -> Tensor:
    del batch
    return logits.mean() ** 2 / 2  # gradient: the weight itself


CPU = Engine(torch.device("cpu"))


def start(name: Optimizer, ema: float | None = None, **settings: float) -> Training:
    network = Scalar()
    optimizer = make_optimizer(
        name, network, **({"learning_rate": 0.1, "weight_decay": 0.0, "momentum": 0.0} | settings)
    )
    return Training(network, optimizer, MovingAverage(network, ema) if ema else None)


def run(
    training: Training, batches: int, steps: range, rate: Callable[[float], float] = lambda _: 1.0, **given: object
):
    return train(
        training, scalar_loader(batches), loss, rate, steps=steps, seed=0, stage=Unwatched(), engine=CPU, **given
    )


def test_the_loop_follows_sgd_with_momentum_decay_and_schedule():
    training = start("sgd", weight_decay=0.01, momentum=0.9)
    run(training, 2, range(6), learning_rate("cosine", epochs=3))
    weight, velocity = 1.0, 0.0
    for step in range(6):
        velocity = 0.9 * velocity + weight + 0.01 * weight
        weight -= 0.1 * (1 + math.cos(math.pi * step / 6)) / 2 * velocity
    assert training.network.weight.item() == pytest.approx(weight, rel=1e-5)


def test_the_moving_average_is_what_is_returned_with_its_buffers():
    training = start("sgd", ema=0.6)
    result = run(training, 1, range(4))
    weights = [0.9, 0.81, 0.729, 0.6561]
    averaged = weights[0]
    for weight in weights[1:]:
        averaged = 0.6 * averaged + 0.4 * weight
    assert result.weight.item() == pytest.approx(averaged, rel=1e-5)
    assert training.network.weight.item() == pytest.approx(weights[-1], rel=1e-5)
    assert 1 < result.seen.item() < 4


def test_after_each_step_the_number_done_is_told():
    told = []
    run(start("adamw"), 2, range(5), after_step=lambda done, _: told.append(done))
    assert told == [1, 2, 3, 4, 5]  # the last epoch ends in its middle


def test_whoever_is_told_may_end_the_training():
    training = start("sgd")
    run(training, 2, range(100), after_step=lambda done, _: done == 3)
    assert training.network.weight.item() == pytest.approx(0.9**3)


@pytest.mark.parametrize("optimizer", get_args(Optimizer))
@pytest.mark.parametrize("ema", [None, 0.6])
def test_training_taken_up_is_training_gone_on_with(optimizer: Optimizer, ema: float | None):
    rate = learning_rate("cosine", epochs=5)
    whole = start(optimizer, ema, momentum=0.9)
    expected = run(whole, 2, range(10), rate)
    first = start(optimizer, ema, momentum=0.9)
    run(first, 2, range(6), rate)
    written = {name: value.clone() for name, value in first.state().items()}
    second = start(optimizer, ema, momentum=0.9)
    second.restore(written)
    result = run(second, 2, range(6, 10), rate)
    assert torch.equal(result.weight, expected.weight)
    assert torch.equal(result.seen, expected.seen)
    assert whole.state().keys() == second.state().keys()
    assert all(torch.equal(value, second.state()[name]) for name, value in whole.state().items())


def test_what_a_network_draws_depends_on_the_epoch_and_not_on_where_training_began():
    def dropped(steps: range) -> list[Tensor]:
        seen: list[Tensor] = []

        class Dropping(Scalar):
            def forward(self, images: Tensor) -> Tensor:
                seen.append(torch.rand(3))
                return super().forward(images)

        network = Dropping()
        run(
            Training(network, make_optimizer("adamw", network, learning_rate=0.1, weight_decay=0, momentum=0)), 2, steps
        )
        return seen

    whole, end = dropped(range(6)), dropped(range(4, 6))
    assert all(torch.equal(a, b) for a, b in zip(whole[4:], end, strict=True))
    assert not torch.equal(whole[0], whole[2])


def test_accuracy_counts(source: Source):
    class Guess(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.stack([torch.ones(len(images)), torch.zeros(len(images))], dim=1)

    guess = Guess().train()
    assert accuracy(guess, source.test, source.preprocessing) == 50.0
    assert guess.training


def test_a_small_network_learns_what_can_be_learnt(source: Source):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    loader = Loader(source.train, source.preprocessing, source.task, batch_size=8, seed=0)
    training = Training(network, make_optimizer("adamw", network, learning_rate=0.01, weight_decay=0.0, momentum=0.0))
    train(
        training, loader, lambda logits, batch: cross_entropy(logits, batch.targets), lambda _: 1.0,
        steps=range(60), seed=0, stage=Unwatched(), engine=CPU,
    )  # fmt: skip
    assert accuracy(network, source.test, source.preprocessing) == 100.0
