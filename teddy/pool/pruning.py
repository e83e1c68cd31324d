"""Structural pruning by dependency graph with a random criterion, to a target of multiply-adds or parameters."""

import copy
import math
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

LARGEST_RATIO = 0.9
TRIES = 12
CLOSE_ENOUGH = 0.01  # of the target
NARROW = 0.004  # an interval of ratios in which no layer of 256 gains or loses a channel

# Where a forward pass reshapes channels, DepGraph cannot follow them; layers whose outputs stay inside a block can go.
INSIDE_BLOCKS = {
    r"(torchvision/)?shufflenet_v2_\w+": r".*\.branch2\.[0134]|conv5\.[01]",
    r"(torchvision/|timm/)?(vit|swin|deit|beit|eva|maxvit)\w*": r".*\.mlp\.(0|fc1)",
}


def pruning_ratio(
    network: nn.Module, name: str, task: Task, *, target: Literal["macs", "parameters"], keep: float
) -> float:
    """The share of channels to remove from every layer so that `keep` is left: a share up to 1, a number above."""
    which = ("macs", "parameters").index(target)
    whole = count_cost(network, task)[which]
    wanted = keep * whole if keep <= 1 else keep
    if wanted > whole:
        raise TeddyError(
            f"pool.pruning.keep: {keep:g} {target} are more than the {whole:g} of network '{name}'; give fewer"
        )
    # A layer's cost goes with its inputs times its outputs: the root of the whole is nearly a line in the ratio.
    root = math.sqrt(wanted)
    below, above = (0.0, math.sqrt(whole)), (1.0, 0.0)
    tried: dict[float, float] = {}
    for attempt in range(TRIES):
        # Halving in between, since a line alone would creep up on the target from one side.
        part = 0.5 if attempt % 3 == 2 else (below[1] - root) / (below[1] - above[1])
        ratio = min(below[0] + (above[0] - below[0]) * part, LARGEST_RATIO)
        left = count_cost(pruned(network, name, task, ratio), task)[which]
        tried[ratio] = abs(left / wanted - 1)
        if tried[ratio] < CLOSE_ENOUGH:
            return ratio
        if ratio >= LARGEST_RATIO and left > wanted:
            raise TeddyError(
                f"pool.pruning.keep: {wanted:g} {target} cannot be reached with network '{name}', "
                f"{left:g} of {whole:g} remain at least; give more"
            )
        if above[0] - below[0] < NARROW:
            break
        below, above = ((ratio, math.sqrt(left)), above) if left > wanted else (below, (ratio, math.sqrt(left)))
    return min(tried, key=lambda ratio: tried[ratio])


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
