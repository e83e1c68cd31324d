from itertools import islice

import pytest
import torch
from torch import Tensor, nn

from teddy import seeding
from teddy.data.augment import Change, draw_change
from teddy.data.source import Source
from teddy.engine import Engine
from teddy.errors import TeddyError
from teddy.matching.statistics import GroupLabels
from teddy.methods.teddy import weighted_objective
from teddy.models.convnet import ConvNet
from teddy.models.layers import batch_norms
from teddy.pool.measuring import running_statistics
from teddy.pool.pool import Pool, Teacher, freeze
from teddy.progress import Unwatched
from teddy.synthesis.groups import Group, make_groups, make_waves
from teddy.synthesis.passes import Passed, Passes
from teddy.synthesis.real import Real, RealImages
from teddy.synthesis.steps import drawn_teachers, synthesize_images

POOL = Pool(tuple(Teacher(f"t{k}", 0.0, nn.Identity()) for k in range(5)))
CPU = torch.device("cpu")
WIDE = torch.tensor(-100.0), torch.tensor(100.0)


def towards_ten(images: Tensor, labels: GroupLabels, teacher: Teacher, real: Real | None = None) -> Passed:
    del teacher, real
    distances = ((images - 10) ** 2).flatten(1).sum(1).unflatten(0, labels.members.shape).sum(1) / 2
    return Passed(images - 10, {"distance": distances})


def towards_real(images: Tensor, labels: GroupLabels, teacher: Teacher, real: Real | None) -> Passed:
    assert real
    return towards_ten(images + 10 - real.images.mean(), labels, teacher)


def unchanged(count: int, generator: torch.Generator) -> Change:
    del count, generator
    return Change()


def synthesize(start: Tensor, *, ipc: int = 2, groups: list[Group] | None = None, **changes: object) -> Tensor:
    options = {
        "bounds": WIDE, "change": unchanged, "iterations": 4, "learning_rate": 0.5, "weight_decay": 0.0,
        "teachers": 1, "redraw": False, "in_turn": False, "seed": 0, "stage": Unwatched(), "device": CPU,
    }  # fmt: skip
    groups = groups or make_groups(len(start) // ipc, ipc, classes_per_group=2, images_per_class=1)
    return synthesize_images(start, groups, POOL, changes.pop("compute", towards_ten), **(options | changes))  # type: ignore[arg-type]


def test_groups_cover_every_image_once():
    groups = make_groups(5, 3, classes_per_group=2, images_per_class=2)
    rows = torch.cat([group.rows for group in groups])
    assert sorted(rows.tolist()) == list(range(15))
    assert [group.number for group in groups] == list(range(6))


def test_images_that_are_kept_are_in_no_group():
    groups = make_groups(2, 5, classes_per_group=2, images_per_class=2, made=3)
    assert [group.rows.tolist() for group in groups] == [[0, 1, 5, 6], [2, 7]]
    assert [group.labels.tolist() for group in groups] == [[0, 0, 1, 1], [0, 1]]


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


def test_teachers_in_turn_count_as_much_beside_the_weight_decay_as_all_together():
    start, settings = torch.zeros(4, 1, 1, 1), {"teachers": 5, "weight_decay": 2.0, "iterations": 8}
    in_turn, together = (synthesize(start, in_turn=in_turn, **settings) for in_turn in (True, False))
    torch.testing.assert_close(in_turn, together)
    assert not torch.allclose(together, synthesize(start, **settings | {"teachers": 1}), rtol=0.01)


def test_a_share_of_the_beginning_is_mixed_in_at_even_distances():
    start = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(4, 1, 1, 1)
    seen: list[Tensor] = []

    def note(images: Tensor, labels: GroupLabels, teacher: Teacher, real: Real | None) -> Passed:
        seen.append(images.detach().clone())
        return towards_ten(images, labels, teacher, real)

    group = make_groups(2, 2, classes_per_group=2, images_per_class=2)
    synthesize(start, groups=group, compute=note, residual=0.25, residual_times=1, iterations=2)
    stepped = start + 0.5  # Adam's first step is its rate
    torch.testing.assert_close(seen[1], 0.75 * stepped + 0.25 * start)
    seen.clear()
    synthesize(start, groups=group, compute=note, residual=1.0, residual_times=2, iterations=6)
    assert [torch.equal(images, start) for images in seen] == [True, False] * 3


def test_pixels_stay_valid():
    result = synthesize(torch.zeros(4, 1, 2, 2), bounds=(torch.tensor(-1.0), torch.tensor(0.25)))
    assert result.max() == 0.25


def make_pool(size: int) -> Pool:
    teachers = []
    for number in range(size):
        torch.manual_seed(number)
        network = freeze(ConvNet(depth=2, width=6, norm="bn", num_classes=6, channels=1, image_size=8))
        for layer in batch_norms(network):
            layer.running_mean, layer.running_var = torch.randn(6), torch.rand(6) + 0.5
        kept = running_statistics(network)
        means = tuple(torch.randn(6, width) for width in (6, 6, 24))
        teachers.append(Teacher(f"t{number}", 0.0, network, kept.means, kept.variances, means))
    return Pool(tuple(teachers))


OBJECTIVE = weighted_objective(global_weight=1.0, class_wise_weight=0.5, every_layer=True, classifier_weight=0.3)


@pytest.mark.parametrize("settings", [{}, {"redraw": True}, {"in_turn": True}, {"redraw": True, "in_turn": True}])
def test_an_image_does_not_depend_on_the_groups_beside_it(settings: dict[str, bool]):
    start = torch.randn(6 * 8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    groups = make_groups(6, 8, classes_per_group=3, images_per_class=1)
    assert len(groups) == 16
    options = {
        "change": lambda count, generator: draw_change(count, 8, 8, generator, crop=(0.3, 1.0), flip=0.5, roll=2),
        "compute": Passes(OBJECTIVE, Engine(CPU)), "iterations": 5, "learning_rate": 0.1,
        "teachers": 3, "pool": make_pool(4), **settings,
    }  # fmt: skip
    pool = options.pop("pool")

    def run(some: list[Group], at_once: int, side_by_side: int) -> Tensor:
        given = {
            "bounds": WIDE,
            "weight_decay": 1e-4,
            "redraw": False,
            "in_turn": False,
            "seed": 3,
            "stage": Unwatched(),
            "device": CPU,
        }
        given |= {key: value for key, value in options.items() if key != "compute"}
        return synthesize_images(
            start, some, pool, options["compute"], at_once=at_once, side_by_side=side_by_side, **given
        )

    alone = torch.zeros_like(start)
    for group in groups:
        alone[group.rows] = run([group], 1, 1)[group.rows]
    assert torch.equal(alone, run(groups, 1, 1))
    assert torch.equal(alone, run(groups, 16, 1))  # stepped at the same time, each in passes of its own: the same bits
    for side_by_side in (4, 16):
        torch.testing.assert_close(run(groups, 16, side_by_side), alone, rtol=1e-3, atol=1e-3)


def test_groups_of_another_shape_are_not_mixed():
    groups = make_groups(5, 3, classes_per_group=2, images_per_class=2)
    waves = make_waves(groups, 2)
    assert all(len({group.shape for group in wave}) == 1 for wave in waves)
    assert all(len(wave) <= 2 for wave in waves)
    assert sorted(group.number for wave in waves for group in wave) == [group.number for group in groups]
    result = synthesize(torch.zeros(15, 1, 1, 1), ipc=3, groups=groups, at_once=8, side_by_side=8, iterations=40)
    assert (result > 5).all()


def test_running_out_of_memory_halves_the_groups_and_changes_nothing():
    said: list[str] = []

    def short(images: Tensor, labels: GroupLabels, teacher: Teacher, real: Real | None) -> Passed:
        if len(labels.classes) > 2:
            raise torch.cuda.OutOfMemoryError("no")
        return towards_ten(images, labels, teacher, real)

    start = torch.randn(16, 1, 1, 1)
    result = synthesize(start, ipc=4, compute=short, teachers=5, at_once=8, side_by_side=8, say=said.append)
    assert torch.equal(result, synthesize(start, ipc=4, teachers=5))
    assert said == [f"synthesis: out of memory, going on with {k} groups side by side" for k in (4, 2)]


def test_a_single_group_too_large_for_the_memory_is_an_error():
    def never(*_: object) -> Passed:
        raise torch.cuda.OutOfMemoryError("no")

    with pytest.raises(TeddyError, match=r"does not hold one group.*method.classes_per_group"):
        synthesize(torch.zeros(8, 1, 1, 1), compute=never, at_once=2, side_by_side=2)


def test_every_group_has_augmentations_of_its_own():
    drawn: list[float] = []

    def note(count: int, generator: torch.Generator) -> Change:
        drawn.append(float(torch.rand(1, generator=generator)))
        return unchanged(count, generator)

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
    seen: list[str] = []

    def note(images: Tensor, labels: GroupLabels, teacher: Teacher, real: Real | None) -> Passed:
        seen.append(teacher.name)
        return towards_ten(images, labels, teacher, real)

    synthesize(torch.zeros(40, 1, 1, 1), ipc=10, compute=note, iterations=1, teachers=2)
    drawn = [set(seen[k : k + 2]) for k in range(0, 40, 2)]  # two groups for each of ten indices
    assert drawn[::2] == drawn[1::2]
    assert len({tuple(sorted(names)) for names in drawn}) > 3


class Kept:
    """A keeper that dies after a few iterations."""

    def __init__(self, dies_after: int) -> None:
        self.left, self.tensors = dies_after, None

    @property
    def due(self) -> bool:
        self.left -= 1
        return True

    def write(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = {name: value.clone() for name, value in tensors.items()}
        if self.left == 0:
            raise RuntimeError

    def read(self) -> dict[str, Tensor] | None:
        return self.tensors

    def remove(self) -> None:
        self.tensors = None


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("settings", [{}, {"redraw": True, "in_turn": True}, {"residual": 0.5, "residual_times": 3}])
def test_a_wave_is_taken_up_where_it_was(settings: dict[str, bool], drawn: bool, source: Source):
    start = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    options = {
        "change": lambda count, generator: draw_change(count, 8, 8, generator, crop=(0.3, 1.0), flip=0.5, roll=2),
        "iterations": 7, "learning_rate": 0.1, "teachers": 3, "at_once": 2, **settings,
        "real": RealImages(source, 2, CPU) if drawn else None,
        "compute": towards_real if drawn else towards_ten,
    }  # fmt: skip
    whole = synthesize(start, **options)
    kept = Kept(dies_after=3)
    with pytest.raises(RuntimeError):
        synthesize(start, keeper=lambda _: kept, **options)
    assert torch.equal(synthesize(start, keeper=lambda _: kept, **options), whole)
