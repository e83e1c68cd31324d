"""The pool of weak teachers: drawing from it, and what is measured on the real data once per teacher.

Shapes: K classes, D features of a layer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from teddy.data.images import ImageSet, in_order
from teddy.data.preprocessing import Preprocessing
from teddy.matching.statistics import class_sums, forward_recording, pooled
from teddy.models.zoo import classifier, normalisation_layers

MEASURING_BATCH = 500


@dataclass(frozen=True)
class Teacher:
    """One frozen network of the pool.

    `class_means` holds a tensor [K, D] per layer: the BatchNorm layers in order, then the classifier's input.
    """

    name: str
    epoch: int
    accuracy: float
    network: nn.Module
    class_means: tuple[Tensor, ...]


@dataclass(frozen=True)
class Pool:
    """Weak teachers, weakest first."""

    teachers: tuple[Teacher, ...]

    def __len__(self) -> int:
        return len(self.teachers)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Teacher, ...]:
        """`count` different teachers, all subsets alike likely."""
        rows = torch.randperm(len(self.teachers), generator=generator)[:count]
        return tuple(self.teachers[row] for row in rows.tolist())

    def spread(self, count: int) -> tuple[Teacher, ...]:
        """`count` teachers spread evenly over the pool, the last one included."""
        size = len(self.teachers)
        return tuple(self.teachers[size - 1 - size * step // count] for step in reversed(range(count)))


def freeze(network: nn.Module) -> nn.Module:
    """In evaluation mode, without gradients for its weights."""
    return network.eval().requires_grad_(False)


def recorded_layers(network: nn.Module) -> list[nn.Module]:
    """The layers whose inputs are compared: every BatchNorm, then the classifier."""
    return [*normalisation_layers(network), classifier(network)]


@torch.no_grad()
def measure_class_means(
    network: nn.Module, images: ImageSet, preprocessing: Preprocessing, num_classes: int
) -> tuple[Tensor, ...]:
    """Means [K, D] of the real images' features by class, at every recorded layer, in one pass over the data."""
    layers = recorded_layers(network)
    sums: list[Tensor] = []
    counts: Tensor | None = None
    for part in in_order(images, MEASURING_BATCH):
        _, inputs = forward_recording(network, layers, preprocessing.normalise(part.pixels))
        batch = [class_sums(pooled(features), part.labels, num_classes) for features in inputs]
        counts = batch[0][1] if counts is None else counts + batch[0][1]
        sums = [total + part for total, (part, _) in zip(sums, batch, strict=True)] if sums else [s for s, _ in batch]
    assert counts is not None
    return tuple(total / counts.clamp(min=1)[:, None] for total in sums)
