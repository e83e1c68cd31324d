"""Batches: shuffled, augmented, normalised."""

import math
from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from teddy import seeding
from teddy.data.augment import Change, Mix, apply_change, apply_mix, draw_mix
from teddy.data.images import Images, ImageSet
from teddy.data.preprocessing import Preprocessing
from teddy.data.source import Task


class Batch(NamedTuple):
    """What one step sees: images [B, C, H, W], target probabilities [B, K], teachers' logits [B, K] if asked for."""

    images: Tensor
    targets: Tensor
    teacher_logits: Tensor | None = None


class Epochs(Protocol):
    """What a network is trained on."""

    batches_per_epoch: int
    preprocessing: Preprocessing

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch, the same whenever it is asked for."""


class Draw(NamedTuple):
    """What one batch is made of: rows of the set, how each image is changed, and how they are mixed."""

    rows: Tensor
    change: Change
    mix: Mix | None


class Loader:
    """Batches of a set of images; each epoch has an order and augmentations of its own, by its number.

    `change` is `draw_change` with its settings; `label` turns augmented images into soft labels, as Algorithm 1's last
    line has it.
    """

    def __init__(
        self,
        images: ImageSet,
        preprocessing: Preprocessing,
        task: Task,
        *,
        batch_size: int,
        seed: int,
        change: Callable[..., Change] | None = None,
        cutmix_alpha: float = 0.0,
        label: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.images = images
        self.preprocessing = preprocessing
        self.task = task
        self.seed = seed
        self.change = change
        self.cutmix_alpha = cutmix_alpha
        self.label = label
        self.batches_per_epoch = math.ceil(len(images) / batch_size)

    def draws(self, epoch: int) -> list[Draw]:
        """An epoch's batches; their sizes differ by one at most, so that none is too small for BatchNorm."""
        generator = seeding.stream(self.seed, "epoch", epoch)
        order = torch.randperm(len(self.images), generator=generator)
        size = self.task.image_size
        draws = []
        for rows in order.tensor_split(self.batches_per_epoch):
            change = self.change(len(rows), size, size, generator) if self.change else Change()
            mix = draw_mix(len(rows), size, size, self.cutmix_alpha, generator) if self.cutmix_alpha else None
            draws.append(Draw(rows, change, mix))
        return draws

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch."""
        draws = self.draws(number)
        for part, draw in zip(self.images.batches([draw.rows for draw in draws]), draws, strict=True):
            images, targets = augmented(part, draw, self.preprocessing, self.task.num_classes)
            yield Batch(images, targets, self.label(images) if self.label else None)


def endless(loader: Epochs) -> Iterator[Batch]:
    """Epoch after epoch."""
    for number in count():
        yield from loader.epoch(number)


def augmented(part: Images, draw: Draw, preprocessing: Preprocessing, num_classes: int) -> tuple[Tensor, Tensor]:
    """A batch's images, normalised and changed as drawn, and their target probabilities [B, K]."""
    images = preprocessing.normalise(part.pixels)
    black, _ = preprocessing.bounds(images)
    images = apply_change(images, draw.change, black)
    targets = F.one_hot(part.labels, num_classes).float()
    return apply_mix(images, targets, draw.mix) if draw.mix else (images, targets)
