"""Batches: shuffled, augmented, normalised."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from teddy import seeding
from teddy.data.augment import cutmix
from teddy.data.preprocessing import Preprocessing
from teddy.data.source import Images


class Batch(NamedTuple):
    """What one step sees: images [B, C, H, W], target probabilities [B, K], teachers' logits [B, K] if asked for."""

    images: Tensor
    targets: Tensor
    teacher_logits: Tensor | None = None


class Resident:
    """A data set that lies on the device whole; each epoch has an order and augmentations of its own, by its number.

    `change` is `augment` with its settings; `label` turns augmented images into soft labels, as Algorithm 1's last line
    has it.
    """

    def __init__(
        self,
        images: Images,
        preprocessing: Preprocessing,
        num_classes: int,
        *,
        batch_size: int,
        seed: int,
        change: Callable[..., Tensor] | None = None,
        cutmix_alpha: float = 0.0,
        label: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.images = images
        self.preprocessing = preprocessing
        self.num_classes = num_classes
        self.seed = seed
        self.change = change
        self.cutmix_alpha = cutmix_alpha
        self.label = label
        self.batches_per_epoch = math.ceil(len(images) / batch_size)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch; their sizes differ by one at most, so that none is too small for BatchNorm."""
        generator = seeding.stream(self.seed, "epoch", number)
        order = torch.randperm(len(self.images), generator=generator).to(self.images.pixels.device)
        for rows in order.tensor_split(self.batches_per_epoch):
            images = self.preprocessing.normalise(self.images.pixels[rows])
            targets = F.one_hot(self.images.labels[rows], self.num_classes).float()
            if self.change:
                black, _ = self.preprocessing.bounds(images)
                images = self.change(images, generator, fill=black)
            if self.cutmix_alpha:
                images, targets = cutmix(images, targets, self.cutmix_alpha, generator)
            yield Batch(images, targets, self.label(images) if self.label else None)
