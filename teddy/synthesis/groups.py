"""Which images share their statistics: a block of classes, with one or several images of each."""

from dataclasses import dataclass

import torch
from torch import Tensor


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


def make_groups(num_classes: int, ipc: int, *, classes_per_group: int, images_per_class: int) -> list[Group]:
    """Groups over a set in which row `label · ipc + i` is the i-th image of class `label`."""
    groups: list[Group] = []
    for index, indices in enumerate(torch.arange(ipc).split(images_per_class)):
        for classes in torch.arange(num_classes).split(classes_per_group):
            rows = (classes[:, None] * ipc + indices).flatten()
            groups.append(Group(len(groups), index, rows, rows // ipc))
    return groups
