"""BatchNorm whose statistics are of the batch of all processes; PyTorch's own, SyncBatchNorm, knows no CPU."""

import copy
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from teddy.errors import TeddyError
from teddy.models.layers import BATCH_NORMS, batch_norms, note_statistics


def with_synchronised_norms(network: nn.Module) -> nn.Module:
    """The network, to be trained, with synchronised norms; its parameters and running statistics are the same ones."""
    other = next((layer for layer in batch_norms(network) if type(layer) not in BATCH_NORMS), None)
    if other is not None:
        raise TeddyError(
            f"engine.synchronise_norms: the network has {type(other).__name__}, which is more than a BatchNorm; "
            "leave it false"
        )
    tensors = chain(network.parameters(), network.buffers())
    synchronised = copy.deepcopy(network, {id(tensor): tensor for tensor in tensors}).train()
    for name, layer in list(synchronised.named_modules()):
        if isinstance(layer, BATCH_NORMS):
            synchronised.set_submodule(name, SynchronisedNorm(layer))
    return synchronised


class SynchronisedNorm(nn.Module):
    """What a BatchNorm does in training, over the images of all processes, of which each may have another number."""

    def __init__(self, layer: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, given: Tensor) -> Tensor:
        """Normalised features [B, C, …] of this process's images."""
        layer, values = self.layer, given.float()
        over = [dim for dim in range(values.dim()) if dim != 1]
        shape = [1, -1] + [1] * (values.dim() - 2)
        own = values.new_tensor([values.numel() / values.shape[1]])
        sums = _Sum.apply(torch.cat([values.sum(over), own]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = values - mean.view(shape)
        variance = _Sum.apply(centred.square().sum(over)) / count
        note_statistics(layer, mean.detach(), variance.detach() * count / (count - 1))
        result = centred * (variance + layer.eps).rsqrt().view(shape)
        if layer.affine:
            result = result * layer.weight.view(shape) + layer.bias.view(shape)
        return result.to(given.dtype)


class _Sum(torch.autograd.Function):
    """The sum over all processes; each has a part in what the others make of it, so gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        del ctx
        total = own.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total
