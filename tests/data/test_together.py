"""Several loaders as one: bit for bit what each shows alone."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from teddy.data.augment import draw_change
from teddy.data.images import Images
from teddy.data.loaders import Batch, Loader, endless
from teddy.data.preprocessing import Preprocessing
from teddy.data.source import Task
from teddy.data.together import _Concatenated, _Joined, together

WAYS: dict[str, dict[str, Any]] = {
    "as they are": {},
    "cropped": {"change": partial(draw_change, crop=(0.2, 1.0), flip=0.5, rotate=10.0)},
    "rolled": {"change": partial(draw_change, roll=3)},
    "cropped, rolled and mixed": {"change": partial(draw_change, crop=(0.2, 1.0), roll=2), "cutmix_alpha": 1.0},
    "changed alike": {"change": partial(draw_change, crop=(0.2, 1.0), roll=2, shared=True)},
    "mixed, even": {"cutmix_alpha": 0.5, "even": True},
}


def label(images: Tensor, epoch: int) -> Tensor:
    return images.flatten(1)[:, :3].cos() + epoch


def some_images(seed: int, count: int = 11) -> Images:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return Images(pixels, torch.randint(0, 3, (count,), generator=generator))


def loaders(way: str, *, shared: bool, soft: bool = True) -> list[Loader]:
    common, preprocessing = some_images(0), Preprocessing((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
    return [
        Loader(
            common if shared else some_images(seed), preprocessing, Task(3, 3, 8), batch_size=4, seed=seed,
            label=label if soft else None, **WAYS[way],
        )
        for seed in (1, 2, 3)
    ]  # fmt: skip


def assert_one_after_the_other(batch: Batch, parts: list[Batch]) -> None:
    for whole, *each in zip(batch, *parts, strict=True):
        assert (whole is None) == (each[0] is None)
        assert whole is None or torch.equal(whole, torch.cat(each))


@pytest.mark.parametrize("label_at_once", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_each_part_is_what_its_loader_shows_alone(way: str, shared: bool, label_at_once: bool):
    single = loaders(way, shared=shared)
    joined = together(single, label_at_once=label_at_once)
    assert isinstance(joined, _Joined)
    assert joined.batches_per_epoch == 3
    for number in range(2):
        batches = list(joined.epoch(number))
        alone = [list(loader.epoch(number)) for loader in single]
        sizes = [3, 3, 3] if WAYS[way].get("even") else [4, 4, 3]
        assert [len(batch.images) for batch in batches] == [3 * size for size in sizes]
        for place, batch in enumerate(batches):
            assert_one_after_the_other(batch, [each[place] for each in alone])
        first, second = batches[0].parts(3)[:2]
        assert not torch.equal(first.images, second.images)


@pytest.mark.parametrize("way", WAYS)
def test_taken_up_in_the_middle_it_goes_on_the_same(way: str):
    single = loaders(way, shared=False, soft=False)
    batches = endless(together(single), first_step=5)
    alone = [endless(loader, first_step=5) for loader in single]
    for _ in range(3):
        assert_one_after_the_other(next(batches), [next(each) for each in alone])


def test_shared_images_are_kept_once():
    single = loaders("as they are", shared=True)
    joined = together(single)
    assert isinstance(joined, _Joined)
    assert joined._images is single[0].images


def test_labels_are_asked_for_at_once_or_part_by_part():
    asked: list[int] = []

    def noting(images: Tensor, epoch: int) -> Tensor:
        asked.append(len(images))
        return label(images, epoch)

    single = loaders("as they are", shared=True)
    for loader in single:
        loader.label = noting
    next(together(single, label_at_once=True).epoch(0))
    next(together(single).epoch(0))
    assert asked == [12, 4, 4, 4]


def test_one_loader_is_left_as_it_is():
    (loader, *_) = loaders("as they are", shared=True)
    assert together([loader]) is loader


@pytest.mark.parametrize("soft", [False, True])
def test_what_is_not_drawn_from_memory_is_put_together(soft: bool):
    single = loaders("cropped, rolled and mixed", shared=False, soft=soft)
    replayed: Any = [_Replay(loader) for loader in single]
    joined = together(replayed)
    assert isinstance(joined, _Concatenated)
    for place, batch in enumerate(joined.epoch(1, skipped=1), start=1):
        assert_one_after_the_other(batch, [list(loader.epoch(1))[place] for loader in single])


class _Replay:
    """Any other kind of loader."""

    def __init__(self, loader: Loader) -> None:
        self.batches_per_epoch, self.preprocessing, self.epoch = 3, loader.preprocessing, loader.epoch
