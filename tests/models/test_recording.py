import pytest
import torch

from teddy.data.source import Task
from teddy.models.layers import recorded_layers
from teddy.models.recording import GroupRecorder, Recorder
from teddy.models.zoo import build_network


def test_inputs_come_in_the_order_of_the_layers_and_no_hook_stays():
    network = build_network("convnet-d2-w4-bn", Task(3, 1, 8)).eval()
    images = torch.randn(5, 1, 8, 8)
    recorder = Recorder(network)
    logits, inputs = recorder(images)
    assert torch.equal(logits, network(images))
    assert torch.equal(inputs[0], network.features[0](images))
    assert torch.equal(inputs[-1], network.features(images).flatten(1))
    assert len(inputs) == len(recorded_layers(network)) == 3
    recorder.remove()
    assert not any(layer._forward_pre_hooks for layer in network.modules())


def test_what_is_kept_is_what_was_asked_for():
    network = build_network("convnet-d2-w4-bn", Task(3, 1, 8)).eval()
    _, shapes = Recorder(network, lambda features: tuple(features.shape))(torch.randn(5, 1, 8, 8))
    assert shapes == [(5, 4, 8, 8), (5, 4, 4, 4), (5, 16)]


def test_maps_are_what_convolutions_but_the_first_are_given():
    network = build_network("convnet-d3-w4-bn", Task(3, 1, 16)).eval()
    images = torch.randn(6, 1, 16, 16)
    logits, layers, maps = GroupRecorder(network)(images, 2)
    assert torch.equal(logits, network(images))
    assert len(layers) == len(recorded_layers(network)) == 4
    assert len(maps) == 2
    for block, given in enumerate(maps, 1):
        assert torch.equal(given, network.features[: 4 * block](images))


@pytest.mark.parametrize("name", ["resnet18", "convnet", "timm/vit_tiny_patch16_224"])
def test_every_network_has_maps_of_the_convolutions_it_runs(name: str):
    network = build_network(name, Task(3, 3, 32)).eval()
    convolutions = sum(isinstance(layer, torch.nn.Conv2d) for layer in network.modules())
    *_, maps = GroupRecorder(network)(torch.randn(2, 3, 32, 32), 1)
    assert len(maps) == convolutions - 1
