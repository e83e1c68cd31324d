"""The pool of weak teachers, and drawing from it.

Shapes: K classes, C channels of a layer, D features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Teacher:
    """One frozen network of the pool, and what its features are like on the real data.

    `means` and `variances` hold a tensor [C] per normalisation layer: RM and RV of Eq. 6. `class_means` holds a tensor
    [K, D] for each of these layers and one for the classifier's input, or nothing where they were not measured.
    """

    name: str
    accuracy: float
    network: nn.Module
    means: tuple[Tensor, ...] = ()
    variances: tuple[Tensor, ...] = ()
    class_means: tuple[Tensor, ...] = ()


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
