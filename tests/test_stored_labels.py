"""Stored labels: what is kept, what it takes, that training replays it."""

from functools import partial

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from teddy.data.augment import draw_change
from teddy.data.loaders import Loader
from teddy.data.source import Source
from teddy.stored_labels import Form, Replay, choose_form, compress, expand, read_stored, record, stored_bytes

TEMPERATURE = 4.0


def label(images: Tensor, epoch: int) -> Tensor:
    """Two numbers that any change of an image changes, and another epoch."""
    return torch.stack([images.mean((1, 2, 3)), (images * torch.arange(8.0)).mean((1, 2, 3)) + epoch], dim=1)


def make_loader(source: Source, **changes: object) -> Loader:
    options = {"crop": (0.3, 1.0), "flip": 0.5, "roll": 2} | changes
    return Loader(
        source.train, source.preprocessing, source.task, batch_size=7, seed=1,
        change=partial(draw_change, **options), cutmix_alpha=1.0, label=label,
    )  # fmt: skip


def replay(loader: Loader, tensors: dict[str, Tensor]) -> Replay:
    return Replay(loader.images, loader.preprocessing, loader.task, tensors)


def test_replayed_labels_are_of_the_very_images_that_are_seen(source: Source):
    loader = make_loader(source)
    replayed = replay(loader, record(loader, Form(3), TEMPERATURE))
    for epoch in range(3):
        for batch, live in zip(replayed.epoch(epoch), loader.epoch(epoch), strict=True):
            assert batch.teacher_logits is not None
            torch.testing.assert_close(batch.teacher_logits, label(batch.images, epoch), atol=2e-3, rtol=1e-3)
            # The same draws as online, but for the half precision of the maps.
            torch.testing.assert_close(batch.targets, live.targets)
            torch.testing.assert_close(batch.images, live.images, atol=0.05, rtol=0.05)


def test_what_is_labelled_is_what_is_replayed_to_the_bit(source: Source):
    labelled: list[Tensor] = []
    loader = make_loader(source)
    loader.label = lambda images, epoch: labelled.append(images) or label(images, epoch)
    replayed = replay(loader, record(loader, Form(2), TEMPERATURE))
    seen = [batch.images for epoch in range(2) for batch in replayed.epoch(epoch)]
    assert all(torch.equal(a, b) for a, b in zip(labelled, seen, strict=True))


@pytest.mark.parametrize("form", [Form(3), Form(2, 1)])
def test_a_strangers_file_is_read_if_it_is_sound(source: Source, form: Form):
    tensors = record(make_loader(source), form, TEMPERATURE)
    back = read_stored(save(tensors), len(source.train), source.task)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def spoil(tensors: dict[str, Tensor], name: str, value: float) -> dict[str, Tensor]:
    spoilt = tensors[name].clone()
    spoilt.view(-1)[0] = value
    return tensors | {name: spoilt}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batches", 0), ("batches", 25), ("order", 24), ("order", -1), ("maps", float("nan")), ("boxes", -1),
        ("boxes", 9), ("partners", 6), ("partners", -1), ("values", float("inf")), ("indices", 2),
        ("rest", float("nan")),
    ],
)  # fmt: skip
def test_a_strangers_file_with_a_wrong_number_is_refused(source: Source, name: str, value: float):
    tensors = record(make_loader(source), Form(2, 1), TEMPERATURE)
    with pytest.raises(ValueError, match=f"'{name}' is not what 24 images and 2 classes need"):
        read_stored(save(spoil(tensors, name, value)), len(source.train), source.task)


@pytest.mark.parametrize("name", ["batches", "order", "boxes", "partners", "values", "indices", "rest"])
def test_a_strangers_file_without_a_part_is_refused(source: Source, name: str):
    tensors = record(make_loader(source), Form(2, 1), TEMPERATURE)
    del tensors[name]
    with pytest.raises(ValueError, match="is not what"):
        read_stored(save(tensors), len(source.train), source.task)


def test_fewer_epochs_are_used_again_in_turn(source: Source):
    loader = make_loader(source)
    replayed = replay(loader, record(loader, Form(2), TEMPERATURE))
    first, third = (torch.cat([batch.images for batch in replayed.epoch(epoch)]) for epoch in (0, 2))
    second = torch.cat([batch.images for batch in replayed.epoch(1)])
    assert torch.equal(first, third)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("form", [Form(2), Form(3, 1), Form(1, 1)])
@pytest.mark.parametrize("changes", [{}, {"roll": 0}, {"crop": None, "flip": 0.0}])
def test_the_size_said_is_the_size_taken(source: Source, form: Form, changes: dict[str, object]):
    loader = make_loader(source, **changes)
    tensors = record(loader, form, TEMPERATURE)
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) == stored_bytes(form, loader)


def test_top_k_keeps_the_largest_and_spreads_the_rest_evenly():
    logits = torch.randn(6, 10) * 3
    stored = compress(logits, 3, TEMPERATURE)
    assert stored["values"].dtype == torch.float16
    assert stored["indices"].dtype == torch.uint8
    before, after = ((x / TEMPERATURE).softmax(1) for x in (logits, expand(stored, 10)))
    for row in range(6):
        kept = before[row].topk(3).indices
        torch.testing.assert_close(after[row][kept], before[row][kept], atol=2e-3, rtol=0)
        others = [k for k in range(10) if k not in kept.tolist()]
        spread = (1 - before[row][kept].sum()) / 7
        torch.testing.assert_close(after[row][others], spread.expand(7), atol=2e-3, rtol=0)


def test_many_classes_have_wider_indices():
    stored = compress(torch.randn(2, 1000), 5, 20.0)
    assert stored["indices"].dtype == torch.int16
    assert torch.equal(expand(stored, 1000).topk(5).indices.sort().values, stored["indices"].long().sort().values)


def test_all_classes_are_half_precision():
    logits = torch.randn(4, 10)
    torch.testing.assert_close(expand(compress(logits, None, 1.0), 10), logits, atol=1e-2, rtol=1e-3)


def size(form: Form) -> int:
    """A thousand bytes for ten classes of one epoch."""
    return form.epochs * 100 * (form.top_k or 10)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (None, Form(50)),
        (50_000, Form(50)),
        (49_999, Form(49)),
        (20_000, Form(20)),
        (5_000, Form(5)),
        (4_999, Form(5, 9)),
        (1_500, Form(5, 3)),
        (1_499, Form(4, 3)),
        (600, Form(2, 3)),
        (1, Form(1, 3)),
    ],
)
def test_a_budget_takes_epochs_first_then_classes_then_epochs_again(budget: float | None, expected: Form):
    asked = {"epochs": 50, "top_k": None, "stored_epochs": None, "size_of": size, "num_classes": 10}
    assert choose_form(budget_bytes=budget, **asked) == expected


def test_what_is_asked_for_is_taken():
    asked = {"epochs": 50, "budget_bytes": None, "size_of": size, "num_classes": 10}
    assert choose_form(top_k=5, stored_epochs=10, **asked) == Form(10, 5)
    assert choose_form(top_k=20, stored_epochs=99, **asked) == Form(50)
