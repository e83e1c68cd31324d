import torch

from teddy.data.source import Task
from teddy.models.layers import recorded_layers
from teddy.models.recording import Recorder
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
