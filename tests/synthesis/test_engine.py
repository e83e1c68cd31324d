from collections.abc import Sequence
from itertools import islice

import pytest
import torch
from torch import Tensor, nn

from teddy import seeding
from teddy.pool.pool import Pool, Teacher
from teddy.progress import Unwatched
from teddy.synthesis.engine import drawn_teachers, synthesize_images
from teddy.synthesis.groups import make_groups

POOL = Pool(tuple(Teacher(f"t{k}", k, 0.0, nn.Identity(), ()) for k in range(5)))
WIDE = torch.tensor(-100.0), torch.tensor(100.0)


def towards_ten(images: Tensor, labels: Tensor, teachers: Sequence[Teacher]) -> dict[str, Tensor]:
    del labels, teachers
    return {"distance": ((images - 10) ** 2).sum() / 2}


def synthesize(start: Tensor, *, ipc: int = 2, **changes: object) -> Tensor:
    options = {
        "bounds": WIDE, "change": lambda images, _: images, "iterations": 4, "learning_rate": 0.5, "weight_decay": 0.0,
        "teachers": 2, "redraw": False, "in_turn": False, "seed": 0, "stage": Unwatched(),
    }  # fmt: skip
    groups = make_groups(len(start) // ipc, ipc, classes_per_group=2, images_per_class=1)
    return synthesize_images(start, groups, POOL, changes.pop("objective", towards_ten), **(options | changes))  # type: ignore[arg-type]


def test_groups_cover_every_image_once():
    groups = make_groups(5, 3, classes_per_group=2, images_per_class=2)
    rows = torch.cat([group.rows for group in groups])
    assert sorted(rows.tolist()) == list(range(15))
    assert [group.number for group in groups] == list(range(6))


def test_the_papers_group_is_one_image_of_each_class_of_a_block():
    groups = make_groups(4, 3, classes_per_group=2, images_per_class=1)
    assert [group.rows.tolist() for group in groups] == [[0, 3], [6, 9], [1, 4], [7, 10], [2, 5], [8, 11]]
    assert [group.labels.tolist() for group in groups][:2] == [[0, 1], [2, 3]]
    assert [group.index for group in groups] == [0, 0, 1, 1, 2, 2]


def test_several_images_of_a_class_share_their_statistics():
    (group,) = make_groups(2, 3, classes_per_group=10, images_per_class=10)
    assert group.rows.tolist() == list(range(6))
    assert group.labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_steps_are_adam_with_the_papers_betas_and_a_cosine():
    weight_decay = 0.1
    result = synthesize(torch.zeros(4, 1, 1, 1), weight_decay=weight_decay)
    pixel, first, second = 0.0, 0.0, 0.0
    for step in range(4):
        gradient = pixel - 10 + weight_decay * pixel
        first = 0.5 * first + 0.5 * gradient
        second = 0.9 * second + 0.1 * gradient**2
        corrected = first / (1 - 0.5 ** (step + 1)), second / (1 - 0.9 ** (step + 1))
        rate = 0.5 * (1 + torch.cos(torch.tensor(torch.pi * step / 4)).item()) / 2
        pixel -= rate * corrected[0] / (corrected[1] ** 0.5 + 1e-8)
    assert result.flatten().tolist() == pytest.approx([pixel] * 4, rel=1e-4)


def test_pixels_stay_valid():
    result = synthesize(torch.zeros(4, 1, 2, 2), bounds=(torch.tensor(-1.0), torch.tensor(0.25)))
    assert result.max() == 0.25


def test_an_image_does_not_depend_on_the_groups_beside_it():
    def jitter(images: Tensor, generator: torch.Generator) -> Tensor:
        return images + torch.randn(len(images), 1, 1, 1, generator=generator)

    start = torch.randn(8, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    groups = make_groups(4, 2, classes_per_group=2, images_per_class=1)
    whole = synthesize(start, change=jitter)
    for group in groups:
        alone = synthesize_images(
            start, [group], POOL, towards_ten, bounds=WIDE, change=jitter, iterations=4, learning_rate=0.5,
            weight_decay=0.0, teachers=2, redraw=False, in_turn=False, seed=0, stage=Unwatched(),
        )  # fmt: skip
        assert torch.equal(alone[group.rows], whole[group.rows])


def test_every_group_has_augmentations_of_its_own():
    drawn: list[float] = []

    def note(images: Tensor, generator: torch.Generator) -> Tensor:
        drawn.append(float(torch.rand(1, generator=generator)))
        return images

    synthesize(torch.zeros(8, 1, 1, 1), change=note, iterations=2)
    assert len(set(drawn)) == len(drawn) == 8  # four groups of two steps


def names(count: int, *, redraw: bool, in_turn: bool, steps: int) -> list[tuple[str, ...]]:
    draws = drawn_teachers(POOL, count, redraw, in_turn, seeding.stream(0, "draw"))
    return [tuple(teacher.name for teacher in drawn) for drawn in islice(draws, steps)]


def test_teachers_drawn_once_stay():
    drawn = names(3, redraw=False, in_turn=False, steps=5)
    assert len(set(drawn)) == 1
    assert len(set(drawn[0])) == 3


def test_teachers_in_turn_come_one_after_the_other():
    (together,) = names(3, redraw=False, in_turn=False, steps=1)
    assert names(3, redraw=False, in_turn=True, steps=7) == [(together[k % 3],) for k in range(7)]


def test_redrawing_changes_them_and_in_turn_waits_for_the_round():
    assert len(set(names(2, redraw=True, in_turn=False, steps=20))) > 5
    rounds = names(2, redraw=True, in_turn=True, steps=40)
    assert all(a != b for a, b in zip(rounds[::2], rounds[1::2], strict=True))
    assert len({(a, b) for a, b in zip(rounds[::2], rounds[1::2], strict=True)}) > 5


def test_groups_of_the_same_index_draw_the_same_teachers():
    seen: dict[tuple[int, ...], set[str]] = {}

    def note(images: Tensor, labels: Tensor, teachers: Sequence[Teacher]) -> dict[str, Tensor]:
        seen[(len(seen), *labels.tolist())] = {teacher.name for teacher in teachers}
        return towards_ten(images, labels, teachers)

    synthesize(torch.zeros(40, 1, 1, 1), ipc=10, objective=note, iterations=1)
    drawn = list(seen.values())  # two groups for each of ten indices
    assert drawn[::2] == drawn[1::2]
    assert len({tuple(sorted(names)) for names in drawn}) > 3
