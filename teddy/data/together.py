"""The batches of several loaders made together: in each, the next batch of every loader, one after the other."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice

import torch

from teddy.data.augment import apply_mix, joined
from teddy.data.images import Images
from teddy.data.loaders import Batch, Draw, Epochs, Loader, augmented


def together(loaders: Sequence[Epochs], *, label_at_once: bool = False) -> Epochs:
    """One for several with the same settings; each one's part of a batch is what it would be alone.

    Only `label_at_once` may round in another way: a GPU labels a large batch faster than several small ones.
    """
    if len(loaders) == 1:
        return loaders[0]
    drawing = [loader for loader in loaders if isinstance(loader, Loader)]
    images = [loader.images for loader in drawing if isinstance(loader.images, Images)]
    if len(images) < len(loaders):
        return _Concatenated(loaders)
    return _Joined(drawing, images, label_at_once)


class _Concatenated:
    """Each makes its own batches, whatever it is."""

    def __init__(self, loaders: Sequence[Epochs]) -> None:
        self.batches_per_epoch, self.preprocessing = loaders[0].batches_per_epoch, loaders[0].preprocessing
        self._loaders = loaders

    def epoch(self, number: int, skipped: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, without the first ones."""
        for batches in zip(*(loader.epoch(number, skipped) for loader in self._loaders), strict=True):
            yield _one_after_the_other(batches)


class _Joined:
    """Orders and augmentations are drawn for each; images in memory are gathered and changed all at once."""

    def __init__(self, loaders: Sequence[Loader], images: Sequence[Images], label_at_once: bool) -> None:
        first = loaders[0]
        self.batches_per_epoch, self.preprocessing = first.batches_per_epoch, first.preprocessing
        self._loaders, self._num_classes = loaders, first.task.num_classes
        self._label, self._label_at_once = first.label, label_at_once
        self._images, self._starts = _as_one_set(images)

    def epoch(self, number: int, skipped: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, without the first ones."""
        every = islice(zip(*(loader.draws(number) for loader in self._loaders), strict=True), skipped, None)
        for draws in every:
            rows = torch.cat([draw.rows + start for draw, start in zip(draws, self._starts, strict=True)])
            changed = Draw(rows, joined([draw.change for draw in draws]), None)
            (gathered,) = self._images.batches([rows])
            batch = Batch(*augmented(gathered, changed, self.preprocessing, self._num_classes))
            if any(draw.mix for draw in draws):  # the boxes differ
                parts = zip(draws, batch.parts(len(draws)), strict=True)
                mixed = [Batch(*apply_mix(part.images, part.targets, draw.mix)) for draw, part in parts if draw.mix]
                batch = _one_after_the_other(mixed)
            if self._label:
                batches = [batch] if self._label_at_once else batch.parts(len(draws))
                labels = torch.cat([self._label(part.images, number) for part in batches])
                batch = batch._replace(teacher_logits=labels)
            yield batch


def _one_after_the_other(batches: Sequence[Batch]) -> Batch:
    images, targets, logits = zip(*batches, strict=True)
    return Batch(torch.cat(images), torch.cat(targets), None if logits[0] is None else torch.cat(logits))


def _as_one_set(images: Sequence[Images]) -> tuple[Images, list[int]]:
    """All of them one after the other, and where each begins; what several share is there once."""
    distinct = {id(some): some for some in images}
    sets = list(distinct.values())
    starts = dict(zip(distinct, accumulate(map(len, sets), initial=0), strict=False))
    one = sets[0]
    if len(sets) > 1:
        one = Images(torch.cat([some.pixels for some in sets]), torch.cat([some.labels for some in sets]))
    return one, [starts[id(some)] for some in images]
