"""A reproducible split into training and test part, for sources that come without one."""

import torch
from torch import Tensor

from teddy import seeding


def split_rows(labels: Tensor, test_share: float) -> tuple[Tensor, Tensor]:
    """Rows for training and for testing: the same share of every class, at least one image on each side where a class
    has two. The split depends on nothing but the labels and the share: not on the run's seed, so that runs compare."""
    train, test = [], []
    values, counts = labels.unique(return_counts=True)
    # One sort for all classes: a pass over the labels for each would take seconds with ImageNet's.
    members = labels.argsort(stable=True).split(counts.tolist())
    for label, rows in zip(values.tolist(), members, strict=True):
        rows = rows[torch.randperm(len(rows), generator=seeding.stream(0, "split", label))]
        held_out = min(max(round(len(rows) * test_share), 1), len(rows) - 1)
        test.append(rows[:held_out])
        train.append(rows[held_out:])
    return torch.cat(train).sort().values, torch.cat(test).sort().values
