import pytest
import torch
from torch import nn
from torchvision import models as torchvision_models

from teddy.data.source import Task
from teddy.errors import TeddyError
from teddy.models.layers import batch_norms, classifier, normalisation_layers
from teddy.models.zoo import build_network, check_network, known_networks

# One of each family of torchvision's, the smallest, at a size it takes.
FAMILIES = {
    "alexnet": 64, "convnext_tiny": 32, "densenet121": 32, "efficientnet_b0": 32, "efficientnet_v2_s": 32,
    "googlenet": 32, "inception_v3": 96, "maxvit_t": 224, "mnasnet0_5": 32, "mobilenet_v2": 32,
    "mobilenet_v3_small": 32, "regnet_x_400mf": 32, "resnet18": 32, "resnext50_32x4d": 32, "shufflenet_v2_x0_5": 32,
    "squeezenet1_1": 32, "swin_t": 32, "swin_v2_t": 32, "vgg11_bn": 32, "vit_b_16": 32, "wide_resnet50_2": 32,
}  # fmt: skip


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_takes_grey_and_colour_images(name: str, channels: int):
    if name == "maxvit_t":  # its size is fixed when it is built
        with pytest.raises(TeddyError, match="does not take images of 32"):
            check_network(name, Task(7, channels, 32))
    check_network(name, Task(7, channels, FAMILIES[name]))


def test_everything_torchvision_lists_is_known():
    assert set(torchvision_models.list_models(module=torchvision_models)) <= set(known_networks())
    assert len(known_networks()) > 60


@pytest.mark.parametrize(
    "name", ["convnet", "convnet-bn", "convnet-d2-w16-bn", "convnet-w8-in", "resnet18", "mobilenet_v2"]
)
@pytest.mark.parametrize("size", [16, 32, 64])
def test_networks_give_logits_and_learn(name: str, size: int):
    torch.manual_seed(0)
    network = build_network(name, Task(5, 1, size))
    logits = network(torch.randn(2, 1, size, size))
    assert logits.shape == (2, 5)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_the_papers_resnet_keeps_its_resolution_on_small_images():
    small, large = build_network("resnet18", Task(200, 3, 64)), build_network("resnet18", Task(1000, 3, 224))
    assert (small.conv1.kernel_size, small.conv1.stride, small.conv1.padding) == ((3, 3), (1, 1), (1, 1))
    assert isinstance(small.maxpool, nn.Identity)
    assert large.conv1.kernel_size == (7, 7)
    assert isinstance(large.maxpool, nn.MaxPool2d)
    assert len(normalisation_layers(small)) == 20
    # torchvision's own count, and that less the larger kernel and classifier
    assert sum(parameter.numel() for parameter in large.parameters()) == 11_689_512
    assert sum(parameter.numel() for parameter in small.parameters()) == 11_689_512 - 64 * 3 * (49 - 9) - 513 * 800


def test_the_fields_convnet():
    network = build_network("convnet", Task(10, 3, 32))
    assert sum(parameter.numel() for parameter in network.parameters()) == 320_010  # as published for CIFAR-10
    assert build_network("convnet", Task(10, 3, 64)).classifier.in_features == 128 * 4 * 4
    assert not batch_norms(network)
    assert len(normalisation_layers(network)) == 3
    assert len(normalisation_layers(build_network("convnet-bn", Task(10, 3, 32)))) == 3


def test_the_classifier_is_the_last_linear_map():
    assert classifier(build_network("resnet18", Task(9, 3, 32))).out_features == 9
    assert classifier(build_network("squeezenet1_1", Task(9, 3, 64))).out_channels == 9


@pytest.mark.parametrize(("name", "hint"), [("resnet81", "resnet18"), ("convnet-w32-bm", "convnet-bn")])
def test_an_unknown_network_gets_the_nearest_names(name: str, hint: str):
    with pytest.raises(TeddyError, match=f"unknown network '{name}'.*{hint}"):
        build_network(name, Task(10, 3, 32))


def test_too_many_halvings_are_an_error():
    with pytest.raises(TeddyError, match="leave nothing of 8 × 8"):
        build_network("convnet-d4", Task(10, 3, 8))
