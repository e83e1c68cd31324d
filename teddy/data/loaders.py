"""Batches: shuffled, augmented, normalised."""

import math
from collections.abc import Callable, Iterator
from itertools import count, islice
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

    def parts(self, count: int) -> "list[Batch]":
        """As many batches of the same size, one after the other."""
        cut = [part.chunk(count) for part in self if part is not None]
        return [Batch(*some) for some in zip(*cut, strict=True)]


class Epochs(Protocol):
    """What a network is trained on."""

    batches_per_epoch: int
    preprocessing: Preprocessing

    def epoch(self, number: int, skipped: int = 0) -> Iterator[Batch]:
        """The batches of one epoch after the first `skipped`, the same whenever they are asked for."""


class Draw(NamedTuple):
    """What one batch is made of: rows of the set, how each image is changed, and how they are mixed."""

    rows: Tensor
    change: Change
    mix: Mix | None

    def part(self, number: int, of: int) -> "Draw":
        """One of so many parts, whose sizes differ by one at most; images that are mixed need their partners."""
        if of == 1:
            return self
        assert self.mix is None
        return Draw(
            self.rows.tensor_split(of)[number], self.change.each(lambda whole: whole.tensor_split(of)[number]), None
        )


class Loader:
    """Batches of a set of images; each epoch has an order and augmentations of its own, by its number.

    `change` is `draw_change` with its settings; `label` turns augmented images and the number of their epoch into soft
    labels, as Algorithm 1's last line has it. `even` makes all batches of one size, as compiled steps want them: a few
    images, less than a batch has, wait for another epoch. `part` is which part of every batch is wanted, of how many;
    the others are not even read.
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
        label: Callable[[Tensor, int], Tensor] | None = None,
        even: bool = False,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self.images = images
        self.preprocessing = preprocessing
        self.task = task
        self.seed = seed
        self.change = change
        self.cutmix_alpha = cutmix_alpha
        self.label = label
        self.part = part
        self.batches_per_epoch = math.ceil(len(images) / batch_size)
        self.shown = len(images) - (len(images) % self.batches_per_epoch if even else 0)

    def draws(self, epoch: int) -> Iterator[Draw]:
        """An epoch's batches, whole; their sizes differ by one at most, so that none is too small for BatchNorm."""
        generator = seeding.stream(self.seed, "epoch", epoch)
        size = self.task.image_size
        for rows in self._order(generator):
            change = self.change(len(rows), size, size, generator) if self.change else Change()
            mix = draw_mix(len(rows), size, size, self.cutmix_alpha, generator) if self.cutmix_alpha else None
            yield Draw(rows, change, mix)

    def _order(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        order = torch.randperm(len(self.images), generator=generator)[: self.shown]
        return order.tensor_split(self.batches_per_epoch)

    def epoch(self, number: int, skipped: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, without the first ones."""
        which, parts = self.part
        order = self._order(seeding.stream(self.seed, "epoch", number))[skipped:]
        rows = [batch.tensor_split(parts)[which] for batch in order]  # all of them, to be read ahead
        draws = (draw.part(*self.part) for draw in islice(self.draws(number), skipped, None))
        for part, draw in zip(self.images.batches(rows), draws, strict=True):
            images, targets = augmented(part, draw, self.preprocessing, self.task.num_classes)
            yield Batch(images, targets, self.label(images, number) if self.label else None)


def endless(loader: Epochs, first_step: int = 0) -> Iterator[Batch]:
    """Epoch after epoch, from any step on."""
    first, skipped = divmod(first_step, loader.batches_per_epoch)
    yield from loader.epoch(first, skipped)
    for number in count(first + 1):
        yield from loader.epoch(number)


def ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Each batch is made while the one before it is used: on a GPU beside it, on a stream of its own."""
    if device.type != "cuda":
        yield from batches
        return
    side = torch.cuda.Stream(device)

    def make() -> tuple[Batch | None, torch.cuda.Event]:
        with torch.cuda.stream(side):
            return next(batches, None), side.record_event()

    made, ready = make()
    while made is not None:
        batch, user = made, torch.cuda.current_stream(device)
        made, then = make()
        user.wait_event(ready)
        for part in batch:
            if part is not None:
                part.record_stream(user)  # not to be given away before it has been used
        yield batch
        ready = then


def augmented(part: Images, draw: Draw, preprocessing: Preprocessing, num_classes: int) -> tuple[Tensor, Tensor]:
    """A batch's images, normalised and changed as drawn, and their target probabilities [B, K]."""
    images = preprocessing.normalise(part.pixels)
    black, _ = preprocessing.bounds(images)
    images = apply_change(images, draw.change, black)
    targets = F.one_hot(part.labels, num_classes).float()
    return apply_mix(images, targets, draw.mix) if draw.mix else (images, targets)
