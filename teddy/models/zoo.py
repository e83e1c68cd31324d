"""Names → networks, with a stem that fits the size of the images and their number of channels."""

import re
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models as torchvision_models

from teddy.data.source import Task
from teddy.errors import TeddyError, unknown
from teddy.models.convnet import ConvNet

CONVNET = re.compile(r"convnet(?:-d(?P<depth>\d+))?(?:-w(?P<width>\d+))?(?:-(?P<norm>bn|in))?")
SMALL_IMAGE = 64  # up to here a ResNet keeps its resolution in the stem, as the paper does for Tiny-ImageNet
TORCHVISION, TIMM = "torchvision/", "timm/"
RESIDUAL = re.compile(r"(resnet|resnext|wide_resnet)\w+")


@cache
def known_networks() -> dict[str, str]:
    """Name → what it is."""
    own = {
        "convnet": "the field's ConvNet: width 128, InstanceNorm, depth by image size; convnet-d3-w64-bn sets each",
        "convnet-bn": "the same with BatchNorm",
        f"{TORCHVISION}NAME": "any of torchvision's with the stem it came with, for weights made elsewhere",
        f"{TIMM}NAME": "any of timm's, where timm is installed",
    }
    names = torchvision_models.list_models(module=torchvision_models)
    return own | {name: _summary(name) for name in names}


def build_network(name: str, task: Task) -> nn.Module:
    """An untrained network; whoever calls seeds its initialisation."""
    if match := CONVNET.fullmatch(name):
        return _build_convnet(name, match, task)
    if name.startswith(TIMM):
        return _build_timm(name.removeprefix(TIMM), task)
    plain = name.removeprefix(TORCHVISION)
    if "/" in plain or plain not in known_networks():
        raise unknown("network", name, known_networks())
    options: dict[str, object] = {"image_size": task.image_size} if plain.startswith("vit_") else {}
    if plain in {"googlenet", "inception_v3"}:
        options |= {"aux_logits": False, "init_weights": True}
    network: nn.Module = torchvision_models.get_model(plain, weights=None, num_classes=task.num_classes, **options)
    _fit_stem(network, name, task.channels, task.image_size)
    return network


def example_images(network: nn.Module, task: Task, count: int) -> Tensor:
    """Blank images that `network` takes, where it is."""
    device = next(network.parameters()).device
    return torch.zeros(count, task.channels, task.image_size, task.image_size, device=device)


def check_network(name: str, task: Task) -> None:
    """Raise unless the network exists and takes such images; only shapes are worked out, nothing is computed."""
    try:
        network = build_network(name, task).eval().to("meta")
        network(example_images(network, task, 2))
    except (RuntimeError, ValueError, AssertionError):
        raise TeddyError(
            f"network '{name}' does not take images of {task.image_size} × {task.image_size}; "
            "choose another size or network"
        ) from None


def _build_convnet(name: str, match: re.Match[str], task: Task) -> nn.Module:
    # A last feature map of 4 × 4, as in the field: depth 3 at 32 × 32, 4 at 64 × 64.
    depth = int(match["depth"] or max(task.image_size.bit_length() - 3, 1))
    if task.image_size // 2**depth < 1:
        raise TeddyError(f"network '{name}': {depth} halvings leave nothing of {task.image_size} × {task.image_size}")
    return ConvNet(
        depth=depth,
        width=int(match["width"] or 128),
        norm=match["norm"] or "in",
        num_classes=task.num_classes,
        channels=task.channels,
        image_size=task.image_size,
    )


def _build_timm(name: str, task: Task) -> nn.Module:
    try:
        import timm
    except ImportError:
        raise TeddyError(f"network '{TIMM}{name}': timm is not installed; pip install timm") from None
    if not timm.is_model(name):
        raise unknown("network", f"{TIMM}{name}", [f"{TIMM}{known}" for known in timm.list_models()])
    options: dict[str, Any] = {"pretrained": False, "num_classes": task.num_classes, "in_chans": task.channels}
    try:
        return timm.create_model(name, img_size=task.image_size, **options)
    except TypeError:  # only those whose shape depends on the size take it
        return timm.create_model(name, **options)


def _fit_stem(network: nn.Module, name: str, channels: int, image_size: int) -> None:
    path, first = next((path, layer) for path, layer in network.named_modules() if isinstance(layer, nn.Conv2d))
    if RESIDUAL.fullmatch(name) and image_size <= SMALL_IMAGE:
        replacement = _convolution(channels, first.out_channels, kernel_size=3, stride=1, padding=1, bias=False)
        network.maxpool = nn.Identity()
    elif channels != first.in_channels:
        replacement = _convolution(
            channels,
            first.out_channels,
            kernel_size=first.kernel_size,
            stride=first.stride,
            padding=first.padding,
            bias=first.bias is not None,
        )
    else:
        return
    parent, _, attribute = path.rpartition(".")
    setattr(network.get_submodule(parent), attribute, replacement)


def _convolution(inputs: int, outputs: int, **options: object) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, **options)  # type: ignore[arg-type]
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def _summary(name: str) -> str:
    stem = "; 3 × 3 stem without pooling up to 64 × 64" if RESIDUAL.fullmatch(name) else ""
    return f"torchvision{stem}"
