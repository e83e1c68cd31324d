"""Schedules, optimisers and the loop, against numbers worked out by hand."""

import math

import pytest
import torch
from conftest import Silent
from torch import Tensor, nn

from teddy.data.loaders import Batch, Loader
from teddy.data.preprocessing import Preprocessing
from teddy.data.source import Images, Source, Task
from teddy.matching.labels import cross_entropy
from teddy.training import accuracy, learning_rate, make_optimizer, train


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


def test_the_loop_follows_sgd_with_momentum_decay_and_schedule():
    network = Scalar()
    optimizer = make_optimizer("sgd", network, learning_rate=0.1, weight_decay=0.01, momentum=0.9)
    rate = learning_rate("cosine", epochs=3)
    train(network, scalar_loader(2), loss, optimizer, rate, epochs=range(3), stage=Silent())
    weight, velocity = 1.0, 0.0
    for step in range(6):
        velocity = 0.9 * velocity + weight + 0.01 * weight
        weight -= 0.1 * (1 + math.cos(math.pi * step / 6)) / 2 * velocity
    assert network.weight.item() == pytest.approx(weight, rel=1e-5)


def test_the_moving_average_is_what_is_returned_with_its_buffers():
    network = Scalar()
    optimizer = make_optimizer("sgd", network, learning_rate=0.1, weight_decay=0.0, momentum=0.0)
    constant = learning_rate("constant", epochs=4)
    result = train(network, scalar_loader(1), loss, optimizer, constant, epochs=range(4), stage=Silent(), ema=0.6)
    weights = [0.9, 0.81, 0.729, 0.6561]
    averaged = weights[0]
    for weight in weights[1:]:
        averaged = 0.6 * averaged + 0.4 * weight
    assert result.weight.item() == pytest.approx(averaged, rel=1e-5)  # type: ignore[union-attr]
    assert network.weight.item() == pytest.approx(weights[-1], rel=1e-5)
    assert 1 < result.seen.item() < 4  # type: ignore[union-attr,operator]


def test_after_each_epoch_the_number_done_is_told():
    told = []
    optimizer = make_optimizer("adamw", network := Scalar(), learning_rate=0.1, weight_decay=0.0, momentum=0.0)
    train(
        network, scalar_loader(2), loss, optimizer, lambda _: 1.0,
        epochs=range(3), stage=Silent(), after_epoch=lambda done, _: told.append(done),
    )  # fmt: skip
    assert told == [1, 2, 3]


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
    optimizer = make_optimizer("adamw", network, learning_rate=0.01, weight_decay=0.0, momentum=0.0)
    train(
        network, loader, lambda logits, batch: cross_entropy(logits, batch.targets), optimizer, lambda _: 1.0,
        epochs=range(20), stage=Silent(),
    )  # fmt: skip
    assert accuracy(network, source.test, source.preprocessing) == 100.0
