"""Real images to compare with, drawn anew for every iteration.

Shapes: G groups, k classes in each, R real images for each group, C channels, H × W pixels.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from teddy.config import MethodSettings
from teddy.data.source import Source
from teddy.matching.statistics import GroupLabels


class Real(NamedTuple):
    """Normalised images [G · R, C, H, W] of the classes that groups show, and which of these each one is."""

    images: Tensor
    labels: GroupLabels

    def of(self, places: slice | Tensor) -> Self:
        """Those of some of the groups."""
        images = self.images.unflatten(0, (len(self.labels.classes), -1))[places].flatten(0, 1)
        return type(self)(images, GroupLabels(*(each[places] for each in self.labels)))


class RealImages:
    """As many training images of each class as asked for, with repetition, whichever the generator says."""

    def __init__(self, source: Source, per_class: int, device: torch.device) -> None:
        self.per_class = per_class
        self._images, self._normalise = source.train.to(device), source.preprocessing.normalise
        labels = source.train.labels.cpu()
        self._rows = labels.argsort(stable=True)  # class after class
        self._counts = torch.bincount(labels, minlength=len(source.classes))
        self._firsts = self._counts.cumsum(0) - self._counts

    def draw(self, classes: Tensor, generator: torch.Generator) -> Tensor:
        """Images [k · n, C, H, W] of `classes` [k], class after class."""
        shares = torch.rand(len(classes), self.per_class, generator=generator)
        places = self._firsts[classes, None] + (shares * self._counts[classes, None]).long()
        (drawn,) = self._images.batches([self._rows[places.flatten()]])
        return self._normalise(drawn.pixels)

    def labels(self, classes: Tensor) -> GroupLabels:
        """Of what is drawn for groups that show `classes` [G, k]."""
        members = torch.arange(classes.shape[1], device=classes.device).repeat_interleave(self.per_class)
        return GroupLabels(classes, members.expand(len(classes), -1))


def real_images(settings: MethodSettings, source: Source, device: torch.device) -> RealImages | None:
    """Where the method draws them."""
    return RealImages(source, settings.real_images, device) if settings.targets == "drawn" else None
