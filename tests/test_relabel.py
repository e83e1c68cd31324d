"""Who labels, and when."""

from functools import partial
from itertools import groupby

import pytest
import torch

from teddy.data.source import Task
from teddy.engine import Engine
from teddy.models.zoo import build_network
from teddy.relabel import ARRIVED, make_ensemble, make_labeller, turn_of

EPOCHS = 20


@pytest.mark.parametrize("turns", [1, 2, 4, 7])
@pytest.mark.parametrize("epochs", [7, 20, 150])
def test_turns_share_the_first_epochs_evenly_and_the_last_keeps_the_rest(epochs: int, turns: int):
    taken = [turn_of(epoch, epochs, turns) for epoch in range(epochs)]
    assert taken == sorted(taken)
    shares = [len(list(some)) for _, some in groupby(taken)]
    if turns <= ARRIVED * epochs:
        assert set(taken) == set(range(turns))
        assert max(shares[:-1], default=1) - min(shares[:-1], default=1) <= 1
    assert set(taken[round(ARRIVED * epochs) :]) == {turns - 1}


@pytest.mark.parametrize(
    ("at_once", "first", "last"),
    [(None, [0, 1, 2], [0, 1, 2]), (1, [0], [2]), (2, [0, 1], [1, 2]), (3, [0, 1, 2], [0, 1, 2])],
)
def test_weak_teachers_label_first_and_strong_ones_in_the_end(at_once: int | None, first: list[int], last: list[int]):
    torch.manual_seed(0)
    networks = [build_network("convnet-d1-w4-bn", Task(3, 1, 8)).eval() for _ in range(3)]
    images = torch.randn(5, 1, 8, 8)
    make = partial(make_ensemble, average="logits", temperature=1.0, engine=Engine(torch.device("cpu")))
    label = make_labeller(networks, make, EPOCHS, at_once)
    with torch.no_grad():
        said = torch.stack([network(images) for network in networks])
    for epoch, who in ((0, first), (EPOCHS - 1, last)):
        torch.testing.assert_close(label(images, epoch), said[who].mean(0))
