"""Silent channels: they change neither outputs nor losses nor what training makes of a network."""

import copy

import pytest
import torch
from torch import nn

from teddy import seeding
from teddy.data.source import Task
from teddy.engine import Engine
from teddy.matching.statistics import GroupLabels
from teddy.methods.teddy import weighted_objective
from teddy.models.padding import good_width, pad_channels, padded, take_back
from teddy.models.recording import Recorder
from teddy.models.widths import output_widths
from teddy.models.zoo import build_network, example_images
from teddy.pool.measuring import running_statistics
from teddy.pool.pool import Teacher, freeze
from teddy.pool.pruning import pruned
from teddy.synthesis.passes import Passes

TASK = Task(6, 3, 16)
LABELS = GroupLabels(torch.tensor([[0, 3, 5], [1, 2, 4]]), torch.tensor([[0, 1, 2, 0], [2, 1, 0, 0]]))
OBJECTIVE = weighted_objective(global_weight=1.0, class_wise_weight=0.5, every_layer=True, classifier_weight=0.3)


def narrow(name: str) -> nn.Module:
    with seeding.seeded(0):
        network = build_network(name, TASK)
        network.train()(torch.randn(16, 3, 16, 16))
        return pruned(network, name, TASK, 0.19)


def test_good_widths_by_hand():
    assert [good_width(width) for width in (52, 104, 209, 419)] == [64, 128, 256, 448]
    assert [good_width(width) for width in (6, 16, 26, 64, 65, 128)] == [8, 16, 32, 64, 72, 128]


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_widths_are_good_ones_and_nothing_else_changes(name: str):
    network = narrow(name)
    wide = padded(network, example_images(network, TASK, 2))
    before = output_widths(network)
    assert before["conv1"] == 51
    assert output_widths(wide) == {
        layer: width if layer == "fc" else good_width(width) for layer, width in before.items()
    }
    images = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(wide(images), network(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["efficientnet_b0", "mobilenet_v2", "convnet-d3-w32-bn"])
def test_a_network_whose_layers_do_not_allow_it_stays_as_it_is(name: str):
    network = narrow(name)
    assert padded(network, example_images(network, TASK, 2)) is network


def test_losses_and_gradients_stay():
    network = freeze(narrow("resnet18"))
    wide = freeze(padded(network, example_images(network, TASK, 2)))
    _, inputs = (recorder := Recorder(network))(torch.randn(12, 3, 16, 16))
    recorder.remove()
    class_means = tuple(torch.randn(6, part.shape[1]) for part in inputs)
    images = torch.randn(8, 3, 16, 16)
    (small, large) = (
        Passes(OBJECTIVE, Engine(torch.device("cpu")))(images, LABELS, Teacher("", 0.0, some, *statistics, means))
        for some, means in ((network, class_means), (wide, tuple(map(pad_channels, class_means))))
        for kept in [running_statistics(some)]
        for statistics in [(kept.means, kept.variances)]
    )
    for term, values in small.terms.items():
        torch.testing.assert_close(large.terms[term], values, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(large.gradient, small.gradient, rtol=1e-3, atol=1e-5)


def test_silent_channels_stay_silent_in_training():
    plain = narrow("resnet18")
    network = copy.deepcopy(plain)
    wide = padded(network, example_images(network, TASK, 2))
    images, labels = torch.randn(8, 3, 16, 16), torch.arange(8) % 6
    for some in (plain, wide):
        optimizer = torch.optim.SGD(some.train().parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(some(images), labels).backward()
            optimizer.step()
    take_back(network, wide)
    for name, value in wide.state_dict().items():
        outside = value.clone()
        outside[tuple(slice(size) for size in network.state_dict()[name].shape)] = 0
        assert not outside.any(), name
    torch.testing.assert_close(network.state_dict(), plain.state_dict(), rtol=1e-3, atol=1e-4)
