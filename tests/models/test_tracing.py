"""Networks rewritten for speed compute what they did."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from teddy.data.source import Task
from teddy.models.folded import FoldedConvolution, folded
from teddy.models.tracing import find_norms, trace
from teddy.models.zoo import build_network

pytest.importorskip("triton")

from teddy.models.fast_layers import FastConvolution, FastMaxPool, TrainedNorm, narrow_convolution, with_fast_layers

TASK = Task(4, 3, 32)
# Each with the number of its BatchNorms, and of those that follow a convolution.
NETWORKS = {
    "convnet-d2-w8-bn": (2, 2),
    "convnet-d2-w8-in": (0, 0),
    "resnet18": (20, 20),
    "torchvision/resnet18": (20, 20),
    "mobilenet_v2": (52, 52),
    "densenet121": (121, 59),
    "shufflenet_v2_x0_5": (56, 56),
    "efficientnet_b0": (49, 49),
    "vit_b_16": (0, 0),
}


def trained(name: str) -> nn.Module:
    torch.manual_seed(0)
    network = build_network(name, TASK)
    if find := [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]:
        for layer in find:
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, std=0.1)
            nn.init.normal_(layer.running_mean, std=0.1)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
    return network.eval()


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_folded_networks_compute_the_same(name: str):
    network, images = trained(name), torch.randn(3, 3, 32, 32)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    expected = network(images)
    other = folded(network, torch.float32)
    torch.testing.assert_close(other(images), expected, rtol=1e-3, atol=1e-4)
    found = trace(network)
    assert found is not None
    counted = len(find_norms(found)), sum(isinstance(layer, FoldedConvolution) for layer in other.modules())
    assert counted == NETWORKS[name]
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_residual_blocks_are_found_whole():
    norms = find_norms(trace(trained("resnet18")))
    with_addition = [norm.path for norm in norms if norm.added is not None]
    assert with_addition == [f"layer{stage}.{block}.bn2" for stage in range(1, 5) for block in range(2)]
    assert [norm.path for norm in norms if not norm.relu] == [f"layer{stage}.0.downsample.1" for stage in (2, 3, 4)]


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.convolution(self.norm(self.convolution(images)))).relu()


class Branching(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images if images.sum() > 0 else -images


def test_what_stands_in_two_places_is_left_alone():
    network, images = Shared().eval(), torch.randn(2, 3, 8, 8)
    assert find_norms(trace(network)) == []
    torch.testing.assert_close(folded(network, torch.float32)(images), network(images))


def test_a_network_that_cannot_be_traced_stays_as_it_is():
    network = Branching()
    assert trace(network) is None
    assert folded(network, torch.float32) is network


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "size"),
    [(7, 2, 3, 32), (3, 2, 1, 32), (3, 1, 1, 16), (5, 2, 2, 16), (4, 2, 1, 16), (3, 2, 0, 16), (7, 2, 3, 15)],
)
def test_narrow_convolutions_are_convolutions(kernel: int, stride: int, padding: int, size: int):
    images, weight = torch.randn(2, 3, size, size, dtype=torch.float64), torch.randn(4, 3, kernel, kernel).double()
    expected = F.conv2d(images, weight, torch.ones(4).double(), stride, padding)
    ours = narrow_convolution(images, weight, torch.ones(4).double(), (stride,) * 2, (padding,) * 2)
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("name", ["convnet-d2-w8-bn", "resnet18", "torchvision/resnet18", "vit_b_16"])
def test_networks_with_fast_layers_take_the_same_step(name: str):
    network, images = trained(name).train(), torch.randn(8, 3, 32, 32)
    other = copy.deepcopy(network)
    fast = with_fast_layers(other)
    for forward in (network, fast):
        F.cross_entropy(forward(images), torch.arange(8) % 4).backward()
    for (key, ours), theirs in zip(other.named_parameters(), network.parameters(), strict=True):
        # Rounding grows on the way back through norms over a few values.
        assert (ours.grad - theirs.grad).norm() <= 0.02 * theirs.grad.norm() + 1e-5, key
    for (key, ours), theirs in zip(other.named_buffers(), network.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}")
    kinds = [type(layer) for layer in fast.modules()]
    assert (FastMaxPool in kinds) == (name == "torchvision/resnet18")
    assert kinds.count(FastConvolution) == {"resnet18": 4, "torchvision/resnet18": 4}.get(name, 1)
    assert kinds.count(TrainedNorm) == {"convnet-d2-w8-bn": 2, "vit_b_16": 0}.get(name, 20)
    assert not {FastConvolution, TrainedNorm} & {type(layer) for layer in other.modules()}
