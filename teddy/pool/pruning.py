"""Structural pruning by dependency graph with a random criterion, to a target of multiply-adds or parameters."""

import copy
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal
from unittest import mock

import torch
import torch_pruning
from torch import Tensor, nn

from teddy.data.source import Task
from teddy.errors import TeddyError
from teddy.models.layers import classifier
from teddy.models.zoo import example_images
from teddy.pool.store import count_cost

HALVINGS = 12  # of the interval in which the ratio is sought: finer than a channel of 2048
LARGEST_RATIO = 0.9

# Where a forward pass reshapes channels, DepGraph cannot follow them; layers whose outputs stay inside a block can go.
INSIDE_BLOCKS = {
    r"(torchvision/)?shufflenet_v2_\w+": r".*\.branch2\.0|conv5\.0",
    r"(torchvision/|timm/)?(vit|swin|deit|beit|eva|maxvit)\w*": r".*\.mlp\.(0|fc1)",
}


def pruning_ratio(
    network: nn.Module, name: str, task: Task, *, target: Literal["macs", "parameters"], keep: float
) -> float:
    """The share of channels to remove from every layer so that `keep` is left: a share up to 1, a number above."""
    which = ("macs", "parameters").index(target)
    whole = count_cost(network, task)[which]
    wanted = keep * whole if keep <= 1 else keep
    if not 0 < wanted <= whole:
        raise TeddyError(
            f"pool.pruning.keep: {keep:g} {target} are more than the {whole:g} of network '{name}'; give fewer"
        )
    low, high = 0.0, LARGEST_RATIO
    least = count_cost(pruned(network, name, task, high), task)[which]
    if least > wanted:
        raise TeddyError(
            f"pool.pruning.keep: {wanted:g} {target} cannot be reached with network '{name}', "
            f"{least:g} of {whole:g} remain at least; give more"
        )
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        left = count_cost(pruned(network, name, task, middle), task)[which]
        low, high = (middle, high) if left > wanted else (low, middle)
    return high


def pruned(network: nn.Module, name: str, task: Task, ratio: float) -> nn.Module:
    """A copy without a random `ratio` of the channels of each group of coupled layers.

    The draws come from PyTorch's global generator: whoever calls seeds it.
    """
    narrow = copy.deepcopy(network).cpu().eval().requires_grad_(True)
    images = example_images(narrow, task, 2)
    kept = [classifier(narrow), *_kept(narrow, name)]
    try:
        with warnings.catch_warnings(), torch.enable_grad(), _without_shuffles():
            warnings.simplefilter("ignore", UserWarning)  # says which bare parameters it prunes with their layers
            pruner = torch_pruning.pruner.BasePruner(
                narrow,
                images,
                importance=torch_pruning.importance.RandomImportance(),
                pruning_ratio=ratio,
                ignored_layers=kept,
            )
            pruner.step()
        with torch.no_grad():
            narrow(images)
    except (RuntimeError, ValueError, ZeroDivisionError, AttributeError, KeyError, IndexError) as error:
        raise TeddyError(
            f"network '{name}': cannot be pruned ({error}); take another, or pool.generation=prior"
        ) from None
    return narrow


def _kept(network: nn.Module, name: str) -> Iterator[nn.Module]:
    for family, free in INSIDE_BLOCKS.items():
        if re.fullmatch(family, name):
            for path, layer in network.named_modules():
                if path and not re.fullmatch(free, path) and not list(layer.children()):
                    yield layer


@contextmanager
def _without_shuffles() -> Iterator[None]:
    """ShuffleNet's channel shuffle left out while its graph is built: the layers it reorders are all kept."""

    def unshuffled(images: Tensor, groups: int) -> Tensor:
        del groups
        return images

    with mock.patch("torchvision.models.shufflenetv2.channel_shuffle", unshuffled):
        yield
