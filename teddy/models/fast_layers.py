"""Layers that compute the same as PyTorch's, in forms for which there are faster kernels."""

from torch import Tensor, fx, nn
from torch.nn import functional as F

from teddy.kernels.max_pool import max_pool
from teddy.kernels.trained_norm import trained_norm
from teddy.models.layers import note_statistics
from teddy.models.tracing import NormInPlace, called_once, find_norms, trace

WIDTH = 8  # channels, or a multiple, that tensor cores take in bf16


def with_fast_layers(network: nn.Module) -> nn.Module:
    """The network, to be trained, with faster layers that share its parameters and running statistics.

    It is the network itself if its code does not allow that.
    """
    traced = trace(network)
    if traced is None:
        return network
    use_fast_layers(traced)
    for norm in find_norms(traced):
        traced.set_submodule(norm.path, TrainedNorm(norm))
        with traced.graph.inserting_before(norm.nodes[-1]):
            norm.replace_by(traced.graph.call_module(norm.path, (norm.given, norm.added)))
    traced.recompile()
    return traced


def use_fast_layers(traced: fx.GraphModule) -> None:
    """Put them in the place of those of a traced network that can be replaced; parameters stay the same ones."""
    for node, layer in called_once(traced).items():
        if isinstance(layer, nn.Conv2d) and (_is_narrow(layer) or _is_strided_point(layer)):
            traced.set_submodule(str(node.target), FastConvolution(layer))
        elif isinstance(layer, nn.MaxPool2d) and _is_plain_pool(layer):
            traced.set_submodule(str(node.target), FastMaxPool(layer))


class FastConvolution(nn.Module):
    """A convolution of few channels, or of single pixels with a stride."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.stride, self.padding = layer.stride, layer.padding

    def forward(self, given: Tensor) -> Tensor:
        """The same result."""
        if self.weight.shape[-2:] == (1, 1):
            # Pooling of single pixels is a slice whose gradient keeps the channels last.
            return F.conv2d(F.avg_pool2d(given, 1, self.stride), self.weight, self.bias)
        return narrow_convolution(given, self.weight, self.bias, self.stride, self.padding)  # type: ignore[arg-type]


class FastMaxPool(nn.Module):
    """Pooling with a faster gradient."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        super().__init__()
        self.how = (layer.kernel_size, layer.stride, layer.padding)

    def forward(self, given: Tensor) -> Tensor:
        """The same result."""
        return max_pool(given, *self.how)  # type: ignore[arg-type]


class TrainedNorm(NormInPlace):
    """BatchNorm as it is in training, and the addition and ReLU after it."""

    def forward(self, given: Tensor, added: Tensor | None) -> Tensor:
        """The result; the running statistics take in those of what was given."""
        result, mean, variance = trained_norm(
            given, added, self.weight, self.bias, self.running_mean, self.eps, self.relu
        )
        number = given.numel() // given.shape[1]
        note_statistics(self, mean, variance * (number / (number - 1)))
        return result


def narrow_convolution(
    images: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, ...], padding: tuple[int, ...]
) -> Tensor:
    """conv2d of images [B, C, H, W] and weight [D, C, k, k].

    With stride 2, each square of four pixels becomes one with four times the channels, and the stride goes away. Then
    channels of zeros fill up to a width that is computed as fast as the smaller one.
    """
    size, (kernel, _) = images.shape[-2:], weight.shape[-2:]
    if stride == (2, 2) and padding[0] == padding[1] and weight.shape[-1] == kernel and size[0] % 2 == size[1] % 2 == 0:
        # The window of output i begins at pixel 2i − padding; made to begin and end between two squares, it has
        # `squares` of them, of which the first is i − before.
        first = padding[0] % 2
        last = (kernel + first) % 2
        squares, before = (kernel + first + last) // 2, (padding[0] + first) // 2
        after = squares - 1 - before
        if (size[0] + 2 * padding[0] - kernel) // 2 + 1 == size[0] // 2 and after >= 0:
            weight = F.pixel_unshuffle(F.pad(weight, (first, last, first, last)), 2)
            images = F.pad(F.pixel_unshuffle(images, 2), (before, after, before, after))
            stride, padding = (1, 1), (0, 0)
    missing = -images.shape[1] % WIDTH
    images, weight = (F.pad(part, (0, 0, 0, 0, 0, missing)) for part in (images, weight))
    return F.conv2d(images, weight, bias, stride, padding)


def _is_narrow(layer: nn.Conv2d) -> bool:
    plain = layer.groups == 1 and layer.dilation == (1, 1) and not isinstance(layer.padding, str)
    return plain and layer.in_channels < WIDTH and layer.padding_mode == "zeros"


def _is_strided_point(layer: nn.Conv2d) -> bool:
    return layer.kernel_size == (1, 1) and layer.groups == 1 and max(layer.stride) > 1 and layer.padding == (0, 0)


def _is_plain_pool(layer: nn.MaxPool2d) -> bool:
    whole = all(isinstance(part, int) for part in (layer.kernel_size, layer.stride, layer.padding))
    return whole and layer.dilation == 1 and not layer.ceil_mode and not layer.return_indices
