"""Pruned networks with silent channels added: tensor cores work on eight channels at a time and their kernels on blocks
of 64, so that 52 or 209 slow them down.

A silent channel has zeros for weights, scale, shift and running statistics. It is zero everywhere, and what it is
compared with in Eq. 6 is zero too, so that neither a network's outputs nor a loss or its gradient know of it.
"""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from teddy.models.layers import classifier
from teddy.models.widths import fit_widths

MULTIPLE, BLOCK = 8, 64
MORE = 1.25  # a width up to which a whole number of blocks is worth its silent channels


def padded(network: nn.Module, images: Tensor) -> nn.Module:
    """A copy whose widths are those of `good_width`; the network itself where its layers do not allow that.

    `images` are any that it takes.
    """
    weights = _padded_weights(network)
    if all(value.shape == weights[name].shape for name, value in network.state_dict().items()):
        return network
    wide = copy.deepcopy(network)
    fit_widths(wide, weights)
    wide.load_state_dict(weights)
    wide.to(images.device).train(network.training)
    return wide if _agree(network, wide, images) else network


@torch.no_grad()
def take_back(network: nn.Module, wide: nn.Module) -> None:
    """Give `network` the weights that its padded copy has been trained to; silent channels stay silent in training."""
    trained = wide.state_dict()
    for name, value in network.state_dict().items():
        value.copy_(trained[name][tuple(slice(size) for size in value.shape)])


def pad_channels(values: Tensor) -> Tensor:
    """Zeros for silent channels behind the last dimension."""
    return F.pad(values, (0, _missing(values.shape[-1])))


def _padded_weights(network: nn.Module) -> dict[str, Tensor]:
    """The network's own, but for what comes in as images and goes out as logits."""
    first = next((layer for layer in network.modules() if isinstance(layer, nn.Conv2d)), None)
    last = classifier(network)
    weights = {}
    for path, layer in network.named_modules():
        own = {**dict(layer.named_parameters(recurse=False)), **dict(layer.named_buffers(recurse=False))}
        for name, value in own.items():
            outputs = 0 if layer is last or not value.dim() else _missing(value.shape[0])
            inputs = 0 if layer is first or value.dim() < 2 else _missing(value.shape[1])
            behind = [0, 0] * (value.dim() - 2) + [0, inputs] * (value.dim() > 1) + [0, outputs] * (value.dim() > 0)
            weights[f"{path}.{name}" if path else name] = F.pad(value.detach(), behind)
    return weights


def good_width(width: int) -> int:
    """The next multiple of 64 that is at most a quarter more, or else of eight."""
    whole = math.ceil(width / BLOCK) * BLOCK
    return whole if whole <= MORE * width else math.ceil(width / MULTIPLE) * MULTIPLE


def _missing(width: int) -> int:
    return good_width(width) - width


@torch.no_grad()
def _agree(network: nn.Module, wide: nn.Module, images: Tensor) -> bool:
    """Grouped convolutions, norms over channels and concatenated layers do not go on with channels added at the end."""
    slope = torch.linspace(-2, 2, images.numel(), device=images.device).view_as(images)  # blank ones show too little
    try:
        expected = network(slope)
        # Another width may round in another way, on a GPU to three digits; a channel in a wrong place shows anyway.
        return torch.allclose(wide(slope), expected, rtol=0, atol=0.02 * float(expected.abs().max()))
    except RuntimeError:
        return False
