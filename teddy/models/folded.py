"""A frozen network with BatchNorm folded into the convolutions before it, which then also add and clip."""

import torch
from torch import Tensor, nn

from teddy.models.tracing import Norm, called_once, find_norms, trace


class FoldedConvolution(nn.Module):
    """Convolution, BatchNorm as it is in evaluation, and the addition and ReLU after it."""

    def __init__(self, convolution: nn.Conv2d, norm: Norm, dtype: torch.dtype) -> None:
        super().__init__()
        fused = nn.utils.fusion.fuse_conv_bn_eval(convolution.eval(), norm.layer.eval())
        self.convolution = fused.to(dtype).to(memory_format=torch.channels_last).requires_grad_(False)
        self.relu = norm.relu

    def forward(self, given: Tensor, added: Tensor | None = None) -> Tensor:
        """The result for `given` [B, C, H, W]."""
        layer = self.convolution
        given = given.to(layer.weight.dtype)
        if not (given.is_cuda and self.relu and isinstance(layer.padding, tuple)):
            result: Tensor = layer(given) if added is None else layer(given) + added
            return result.relu_() if self.relu else result
        how = (layer.stride, layer.padding, layer.dilation, layer.groups)
        if added is None:
            return torch.cudnn_convolution_relu(given, layer.weight, layer.bias, *how)
        return torch.cudnn_convolution_add_relu(given, layer.weight, added, 1.0, layer.bias, *how)


def folded(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of a frozen network for evaluation only, its convolutions in `dtype`; the network itself if its code does
    not allow that."""
    traced = trace(network)
    if traced is None:
        return network
    single = called_once(traced)
    for norm in find_norms(traced):
        before = norm.given
        path, convolution = str(before.target), single.get(before)
        if not isinstance(convolution, nn.Conv2d) or len(before.users) > 1:
            continue
        traced.set_submodule(path, FoldedConvolution(convolution, norm, dtype))
        with traced.graph.inserting_before(norm.nodes[-1]):
            result = traced.graph.call_module(path, (*before.args, norm.added))
        norm.replace_by(result)
        traced.graph.erase_node(before)
    traced.recompile()
    return traced
