"""Narrower networks: the widths of one, and a network rebuilt with the widths its weights have."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def output_widths(network: nn.Module) -> dict[str, int]:
    """Layer → number of its outputs, for convolutions and linear maps."""
    return {
        name: layer.weight.shape[0]
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
    }


def fit_widths(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give `network` the shapes of `weights`, which are its own with channels removed; their values are not copied."""
    for name, layer in network.named_modules():
        prefix = f"{name}." if name else ""
        changed = False
        for own, parameter in layer.named_parameters(recurse=False):
            shape = weights[prefix + own].shape
            if shape != parameter.shape:
                layer.register_parameter(own, nn.Parameter(torch.empty(shape)))
                changed = True
        for own, buffer in layer.named_buffers(recurse=False):
            shape = weights[prefix + own].shape
            if shape != buffer.shape:
                layer.register_buffer(own, torch.empty(shape, dtype=buffer.dtype))
        if changed:
            _renumber(layer)


def _renumber(layer: nn.Module) -> None:
    """Bring the sizes that a layer keeps beside its parameters in line with them."""
    if isinstance(layer, nn.Conv2d):
        if layer.groups > 1:  # depthwise, the only grouped kind whose groups pruning changes
            layer.groups = layer.weight.shape[0] if layer.weight.shape[1] == 1 else layer.groups
        layer.out_channels, layer.in_channels = layer.weight.shape[0], layer.weight.shape[1] * layer.groups
    elif isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = layer.weight.shape
    elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.InstanceNorm2d):
        layer.num_features = len(layer.weight)
    elif isinstance(layer, nn.GroupNorm):
        layer.num_channels = len(layer.weight)
    elif isinstance(layer, nn.LayerNorm):
        layer.normalized_shape = tuple(layer.weight.shape)
