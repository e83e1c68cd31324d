"""The layers of a network that statistics matching looks at, whatever the architecture."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
OTHER_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.InstanceNorm1d, nn.InstanceNorm2d)


def normalisation_layers(network: nn.Module) -> list[nn.Module]:
    """The layers whose inputs' statistics Eq. 6 compares: BatchNorm, and in networks without it the other kinds."""
    return batch_norms(network) or [layer for layer in network.modules() if isinstance(layer, OTHER_NORMS)]


def batch_norms(network: nn.Module) -> list[nn.Module]:
    """The layers that keep running statistics."""
    return [layer for layer in network.modules() if isinstance(layer, BATCH_NORMS)]


def normalising_by_batch(network: nn.Module) -> nn.Module:
    """A copy whose BatchNorm takes the statistics of what it is given, as in training, and keeps none."""
    network = copy.deepcopy(network)
    for layer in batch_norms(network):
        layer.register_buffer("running_mean", None)
        layer.register_buffer("running_var", None)
    return network


@torch.no_grad()
def note_statistics(layer: Any, mean: Tensor, variance: Tensor) -> None:
    """Let a BatchNorm's running statistics, if it keeps any, take in those of a batch; the variance is unbiased."""
    if layer.running_mean is None:
        return
    layer.num_batches_tracked.add_(1)
    share = 1 / layer.num_batches_tracked if layer.momentum is None else layer.momentum
    layer.running_mean.lerp_(mean, share)
    layer.running_var.lerp_(variance, share)


def classifier(network: nn.Module) -> nn.Module:
    """The last linear map, whose input is the feature f(x) of Proposition 2."""
    linear = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    return linear[-1] if linear else convolutions[-1]


def inner_convolutions(network: nn.Module) -> list[nn.Module]:
    """All but the first, which is given the images."""
    convolutions: list[nn.Module] = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    return convolutions[1:]


def recorded_layers(network: nn.Module) -> list[nn.Module]:
    """The layers whose inputs are compared: every normalisation, then the classifier."""
    return [*normalisation_layers(network), classifier(network)]


def channels_first(layer: nn.Module, features: Tensor) -> Tensor:
    """What `layer` was given as [B, C, …]; LayerNorm of tokens, [B, T, C] or [B, H, W, C], has the channels last."""
    # torchvision and timm each have a LayerNorm2d for [B, C, H, W], a subclass of nn.LayerNorm.
    last = isinstance(layer, nn.LayerNorm | nn.RMSNorm) and "2d" not in type(layer).__name__
    return features.movedim(-1, 1) if last else features
