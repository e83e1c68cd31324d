from functools import partial

import pytest
import torch

from teddy.data import images as images_module
from teddy.data.augment import Change, draw_change
from teddy.data.loaders import Loader
from teddy.data.preprocessing import Preprocessing
from teddy.data.source import Images, Source, Task


def numbered(count: int) -> Images:
    """Images that carry their own number, so that it can be read off."""
    pixels = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(count, 1, 4, 4).clone()
    return Images(pixels, torch.arange(count) % 3)


def loader(count: int = 10, batch_size: int = 4, seed: int = 0, **options: object) -> Loader:
    return Loader(
        numbered(count), Preprocessing((0.0,), (1 / 255,)), Task(3, 1, 4), batch_size=batch_size, seed=seed, **options
    )


def order(loaded: Loader, epoch: int) -> list[int]:
    return [round(float(image[0, 0, 0])) for batch in loaded.epoch(epoch) for image in batch.images]


def test_an_epoch_shows_every_image_once_in_an_order_of_its_own():
    loaded = loader()
    assert sorted(order(loaded, 0)) == list(range(10))
    assert order(loaded, 0) == order(loaded, 0)
    assert order(loaded, 0) != order(loaded, 1)
    assert order(loaded, 0) != order(loader(seed=1), 0)


def test_batches_are_of_even_size():
    assert [len(batch.images) for batch in loader(count=9, batch_size=4).epoch(0)] == [3, 3, 3]
    assert loader(count=9, batch_size=4).batches_per_epoch == 3


def test_targets_follow_their_images():
    for batch in loader().epoch(0):
        assert torch.equal(batch.targets.argmax(1), batch.images[:, 0, 0, 0].round().long() % 3)
        assert batch.teacher_logits is None


def test_soft_labels_are_of_the_images_as_augmented():
    def one_down(count: int, height: int, width: int, generator: torch.Generator) -> Change:
        del generator
        assert (height, width) == (4, 4)
        return Change(offsets=torch.tensor([[1, 0]]).expand(count, 2))

    marked = numbered(10)
    marked.pixels[:, :, 0] = 200  # the first row of pixels, which moves to the second
    labelled = Loader(
        marked, Preprocessing((0.0,), (1 / 255,)), Task(3, 1, 4), batch_size=4, seed=0,
        change=one_down, label=lambda images, epoch: images[:, 0, :3, 0] + epoch,
    )  # fmt: skip
    for batch in labelled.epoch(5):
        assert batch.teacher_logits is not None
        torch.testing.assert_close(batch.images[:, 0, 1], torch.full((len(batch.images), 4), 200.0))
        assert torch.equal(batch.teacher_logits, batch.images[:, 0, :3, 0] + 5)


def test_a_draw_has_so_many_different_images_of_each_class(source: Source):
    drawn = source.draw(5, torch.Generator().manual_seed(0))
    assert drawn.labels.tolist() == [0] * 5 + [1] * 5
    assert len({tuple(pixels.flatten().tolist()) for pixels in drawn.pixels}) == 10


def test_even_batches_are_of_one_size_and_leave_others_out_each_time():
    loaded = loader(count=11, batch_size=4, even=True)
    assert [len(batch.images) for batch in loaded.epoch(0)] == [3, 3, 3]
    assert {number for epoch in range(12) for number in order(loaded, epoch)} == set(range(11))


def test_an_epoch_can_be_taken_up_in_its_middle():
    whole = [batch.images for batch in loader().epoch(3)]
    rest = [batch.images for batch in loader().epoch(3, 2)]
    assert len(rest) == len(whole) - 2
    assert all(torch.equal(a, b) for a, b in zip(rest, whole[2:], strict=True))


def test_parts_of_batches_make_the_batches_whole():
    change = partial(draw_change, crop=(0.5, 1.0), roll=1)
    parts = [loader(count=11, batch_size=4, change=change, part=(number, 3)) for number in range(3)]
    for whole, *each in zip(
        loader(count=11, batch_size=4, change=change).epoch(2), *(p.epoch(2) for p in parts), strict=True
    ):
        assert max(len(part.images) for part in each) - min(len(part.images) for part in each) <= 1
        torch.testing.assert_close(torch.cat([part.images for part in each]), whole.images)
        assert torch.equal(torch.cat([part.targets for part in each]), whole.targets)
    later = list(parts[1].epoch(2))[2:]
    assert all(torch.equal(a.images, b.images) for a, b in zip(parts[1].epoch(2, skipped=2), later, strict=True))


def test_only_its_own_part_of_a_batch_is_read(monkeypatch: pytest.MonkeyPatch):
    read, batches = [], Images.batches
    monkeypatch.setattr(Images, "batches", lambda self, rows: batches(self, read.extend(rows) or rows))
    shown = sum(len(batch.images) for batch in loader(part=(0, 2)).epoch(0))
    assert sum(map(len, read)) == shown < 10


@pytest.mark.parametrize(
    ("size", "expected"), [(16, [10, 10, 5]), (32, [10, 10, 5]), (64, [2] * 12 + [1]), (128, [1] * 25)]
)
def test_large_images_are_looked_at_in_smaller_batches(size: int, expected: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(images_module, "MOST_PIXELS", 10 * 32**2)
    images = Images(torch.zeros(25, 1, size, size, dtype=torch.uint8), torch.arange(25))
    parts = list(images_module.in_order(images, 10))
    assert [len(part) for part in parts] == expected
    assert torch.cat([part.labels for part in parts]).tolist() == list(range(25))


@pytest.mark.parametrize(("device", "expected"), [("cpu", [4, 4, 2]), ("meta", [10])])
def test_a_cpu_looks_at_what_its_caches_hold(device: str, expected: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(images_module, "CACHED_PIXELS", 4 * 32**2)
    images = Images(torch.zeros(10, 1, 32, 32, dtype=torch.uint8, device=device), torch.arange(10, device=device))
    assert [len(part) for part in images_module.in_order(images, 100)] == expected
