"""Random structural pruning: the paper's target, and that a member is decided by its seed."""

import pytest
import torch
from torch import nn

from teddy import seeding
from teddy.data.source import Task
from teddy.errors import TeddyError
from teddy.models.widths import fit_widths, output_widths
from teddy.models.zoo import build_network
from teddy.pool.pruning import pruned, pruning_ratio
from teddy.pool.store import count_cost

IMAGENET = Task(1000, 3, 224)


@pytest.mark.parametrize(("target", "keep"), [("macs", 0.66), ("macs", 1.2e9), ("parameters", 7.72e6)])
def test_the_papers_target(target: str, keep: float):
    network = build_network("torchvision/resnet18", IMAGENET)
    assert count_cost(network, IMAGENET) == (pytest.approx(1.82e9, rel=0.01), 11_689_512)
    ratio = pruning_ratio(network, "resnet18", IMAGENET, target=target, keep=keep)  # type: ignore[arg-type]
    assert ratio == pytest.approx(0.19, abs=0.01)
    with seeding.seeded(0):
        narrow = pruned(network, "resnet18", IMAGENET, ratio)
    macs, parameters = count_cost(narrow, IMAGENET)
    assert parameters == pytest.approx(7.72e6, rel=0.02)
    assert macs == pytest.approx(1.2e9, rel=0.02)
    assert narrow.fc.out_features == 1000


def test_the_seed_decides_which_channels_stay_and_not_how_many():
    task = Task(3, 1, 8)
    network = build_network("convnet-d2-w16-bn", task)
    weights = []
    for seed in (0, 0, 1):
        with seeding.seeded(seed):
            weights.append(pruned(network, "convnet-bn", task, 0.5).features[0].weight)
    assert torch.equal(weights[0], weights[1])
    assert weights[0].shape == weights[2].shape == (8, 1, 3, 3)
    assert not torch.equal(weights[0], weights[2])
    kept = {tuple(channel.flatten().tolist()) for channel in network.features[0].weight}
    assert all(tuple(channel.flatten().tolist()) in kept for channel in weights[0])  # channels go, none is changed
    assert network.features[0].out_channels == 16


def test_channels_of_a_residual_stream_go_together():
    task = Task(10, 3, 32)
    network = build_network("resnet18", task)
    stream = [network.bn1, network.layer1[0].bn2, network.layer1[1].bn2]
    inside = network.layer1[0].bn1
    for layer in (*stream, inside):
        layer.weight.data = torch.arange(64.0)
    with seeding.seeded(0):
        narrow = pruned(network, "resnet18", task, 0.25)
    kept = [layer.weight.tolist() for layer in (narrow.bn1, narrow.layer1[0].bn2, narrow.layer1[1].bn2)]
    assert len(kept[0]) == 48
    assert kept[0] == kept[1] == kept[2]
    assert narrow.layer1[0].bn1.weight.tolist() != kept[0]


@pytest.mark.parametrize(
    ("keep", "message"),
    [(1e12, "more than the .* of network 'convnet-bn'; give fewer"), (1e-6, "cannot be reached .* remain at least")],
)
def test_a_target_out_of_reach_is_an_error(keep: float, message: str):
    task = Task(3, 1, 8)
    with pytest.raises(TeddyError, match=message):
        pruning_ratio(build_network("convnet-d2-w16-bn", task), "convnet-bn", task, target="macs", keep=keep)


def test_a_network_that_cannot_be_pruned_is_an_error():
    class Reshaping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, 6), nn.Linear(6, 3)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(images.flatten(1)).view(-1, 2, 3).flatten(1).view(-1, 6))

    with pytest.raises(TeddyError, match=r"network 'odd': cannot be pruned .* pool.generation=prior"):
        pruned(Reshaping(), "odd", Task(3, 1, 8), 0.5)


def test_widths_are_those_of_convolutions_and_linear_maps():
    network = build_network("convnet-d2-w16-bn", Task(3, 1, 8))
    assert output_widths(network) == {"features.0": 16, "features.4": 16, "classifier": 3}


def test_a_network_takes_the_widths_of_weights():
    task = Task(3, 1, 8)
    network = build_network("convnet-d2-w16-bn", task)
    with seeding.seeded(0):
        narrow = pruned(network, "convnet-bn", task, 0.5).eval()
    again = build_network("convnet-d2-w16-bn", task).eval()
    fit_widths(again, narrow.state_dict())
    again.load_state_dict(narrow.state_dict())
    images = torch.randn(2, 1, 8, 8)
    assert torch.equal(again(images), narrow(images))
    assert repr(again) == repr(narrow)
