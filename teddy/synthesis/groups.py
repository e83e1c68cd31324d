"""Which images share their statistics: a block of classes, with one or several images of each."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from teddy.matching.statistics import GroupLabels


@dataclass(frozen=True)
class Group:
    """Images that are stepped together.

    `index` numbers the block of image indices: groups with the same index draw the same teachers, as the paper has it
    for "the i-th image of all classes".
    """

    number: int
    index: int
    rows: Tensor
    labels: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Images and classes; groups of one shape can be computed side by side."""
        return len(self.labels), len(self.labels.unique())


def make_groups(
    num_classes: int, ipc: int, *, classes_per_group: int, images_per_class: int, made: int | None = None
) -> list[Group]:
    """Groups over a set in which row `label · ipc + i` is the i-th image of class `label`: all, or the first `made`
    of each class."""
    groups: list[Group] = []
    for index, indices in enumerate(torch.arange(ipc if made is None else made).split(images_per_class)):
        for classes in torch.arange(num_classes).split(classes_per_group):
            rows = (classes[:, None] * ipc + indices).flatten()
            groups.append(Group(len(groups), index, rows, rows // ipc))
    return groups


def group_labels(groups: Sequence[Group], device: torch.device) -> GroupLabels:
    """The labels of groups of one shape."""
    pairs = [group.labels.unique(return_inverse=True) for group in groups]
    classes, members = (torch.stack(parts).to(device) for parts in zip(*pairs, strict=True))
    return GroupLabels(classes, members)


def named(groups: Sequence[Group]) -> str:
    """For a message: which blocks these are."""
    numbers = ", ".join(str(group.number) for group in groups[:5]) + (", …" if len(groups) > 5 else "")
    return f"block {numbers} is" if len(groups) == 1 else f"blocks {numbers} are"


def make_waves(groups: Sequence[Group], most: int) -> list[list[Group]]:
    """At most `most` groups of one shape each, the largest shape first: what is stepped at the same time. The order
    stays when the first ones are gone."""
    waves: list[list[Group]] = []
    by_shape: dict[tuple[int, int], list[Group]] = {}
    for group in groups:
        by_shape.setdefault(group.shape, []).append(group)
    for _, alike in sorted(by_shape.items(), reverse=True):
        waves += [alike[first : first + most] for first in range(0, len(alike), most)]
    return waves
