"""Algorithm 1's loop: draw teachers, augment, compare, step, clamp; many groups of images at the same time.

Shapes: N images in all, G groups of B images in a wave, C channels, H × W pixels.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from teddy import seeding
from teddy.errors import NumbersError, TeddyError
from teddy.matching.statistics import GroupLabels
from teddy.pool.pool import Pool, Teacher
from teddy.progress import Stage
from teddy.synthesis.groups import Group, make_waves, named
from teddy.synthesis.passes import Passed
from teddy.synthesis.real import Real, RealImages
from teddy.synthesis.wave import DrawChange, Wave

Pass = Callable[[Tensor, GroupLabels, Teacher, Real | None], Passed]


class Keeper(Protocol):
    """Where a wave is kept while it is under way, should it be interrupted."""

    @property
    def due(self) -> bool:
        """Whether it is time to write."""

    def write(self, tensors: dict[str, Tensor]) -> None:
        """The state of now."""

    def read(self) -> dict[str, Tensor] | None:
        """The state of last time, if there is one."""

    def remove(self) -> None:
        """The wave is done."""


def synthesize_images(
    start: Tensor,
    groups: Sequence[Group],
    pool: Pool,
    compute: Pass,
    *,
    bounds: tuple[Tensor, Tensor],
    change: DrawChange,
    iterations: int,
    learning_rate: float,
    weight_decay: float,
    teachers: int,
    redraw: bool,
    in_turn: bool,
    seed: int,
    stage: Stage,
    device: torch.device,
    residual: float = 0.0,
    residual_times: int = 0,
    real: RealImages | None = None,
    at_once: int = 1,
    side_by_side: int = 1,
    say: Callable[[str], None] = lambda _: None,
    keeper: Callable[[Sequence[Group]], Keeper] | None = None,
    after_wave: Callable[[Sequence[Group], Tensor], None] = lambda *_: None,
) -> Tensor:
    """The images [N, C, H, W] that `start` becomes in these `groups`; `bounds` are black and white.

    `at_once` groups are brought to the device and stepped at the same time, `side_by_side` of them in one pass through
    a teacher. A group's result depends on neither but for rounding: it has its own statistics, augmentations, teachers.
    `keeper` says where a wave that is under way is kept, `after_wave` takes those groups of it that went well.
    """
    passes = _Passes(compute, side_by_side, say)
    if in_turn:  # Adam makes the gradients of one and of n teachers alike; the decay beside them would not be
        weight_decay /= teachers

    def stepped(some: Sequence[Group], rate: float, kept: Keeper | None) -> Tensor:
        """The images [G, B, C, H, W] of some groups of one shape."""
        draws = [
            drawn_teachers(pool, teachers, redraw, in_turn, seeding.stream(seed, "teachers", group.index))
            for group in some
        ]
        augmentations = [seeding.stream(seed, "augment", group.number) for group in some]
        images = start[torch.cat([group.rows for group in some])].to(device)
        wave = Wave(
            some, images, draws, augmentations, rate, weight_decay, iterations, residual, residual_times, real
        )  # fmt: skip
        if kept and (tensors := kept.read()) is not None:
            wave.restore(tensors)
            if wave.done:
                stage.step(len(some) * wave.done)
        while wave.done < iterations:
            terms = wave.step(passes.gather, change, bounds)
            if kept and kept.due:
                kept.write(wave.state())
            stage.step(len(some), loss=sum(terms.values()), **terms)
        return wave.images.detach().unflatten(0, (len(some), -1)).to(start.device)

    result = start.clone()
    lost: list[Group] = []
    for wave in make_waves(groups, at_once):
        tried = wave
        for rate in (learning_rate, learning_rate / 10):
            kept = keeper(tried) if keeper and tried is wave else None
            made = stepped(tried, rate, kept)
            good = made.flatten(1).isfinite().all(1)
            if fine := [group for group, whole in zip(tried, good, strict=True) if whole]:
                rows = torch.cat([group.rows for group in fine])
                result[rows] = made[good].flatten(0, 1)
                after_wave(fine, result[rows])
            if kept:
                kept.remove()
            tried = [group for group, whole in zip(tried, good, strict=True) if not whole]
            if not tried:
                break
            say(f"synthesis: {named(tried)} not finite at a learning rate of {rate:g}")
        lost += tried
    if lost:
        raise NumbersError(
            f"synthesis: {named(lost)} not finite, at a tenth of the learning rate neither; the others are kept; "
            "lower method.learning_rate or the weights of the terms"
        )
    return result


class _Passes:
    """What all teachers say of a wave, pass by pass; where memory runs out, of fewer groups a pass."""

    def __init__(self, compute: Pass, side_by_side: int, say: Callable[[str], None]) -> None:
        self._compute, self._side_by_side, self._say = compute, side_by_side, say
        self._places: dict[tuple[int, ...], Tensor] = {}

    def gather(
        self, images: Tensor, labels: GroupLabels, drawn: Sequence[tuple[Teacher, ...]], real: Real | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradient [G · B, C, H, W] over all teachers drawn for each group, and the terms' means over groups."""
        num_groups = len(labels.classes)
        given = images.detach().unflatten(0, (num_groups, -1))
        gradient = torch.zeros_like(given)
        totals: dict[str, Tensor] = {}
        for teacher, groups in _by_teacher(drawn):
            waiting = list(groups)
            while waiting:
                part = waiting[: _largest_power(min(len(waiting), self._side_by_side))]
                places = self._places_of(tuple(part), images.device)
                try:
                    passed = self._compute(
                        given[places].flatten(0, 1),
                        GroupLabels(*(each[places] for each in labels)),
                        teacher,
                        real and real.of(places),
                    )
                except torch.cuda.OutOfMemoryError:
                    self._make_do_with(len(part))
                    continue
                gradient[places] += passed.gradient.unflatten(0, (len(part), -1))
                for name, values in passed.terms.items():
                    totals[name] = totals.get(name, 0) + values.sum() / num_groups
                del waiting[: len(part)]
        return gradient.flatten(0, 1), totals

    def _places_of(self, part: tuple[int, ...], device: torch.device) -> slice | Tensor:
        """Neighbours as a slice, whose images need no copy; others are kept, since bringing them to a GPU waits."""
        if part == tuple(range(part[0], part[-1] + 1)):
            return slice(part[0], part[-1] + 1)
        if part not in self._places:
            self._places[part] = torch.tensor(part, device=device)
        return self._places[part]

    def _make_do_with(self, tried: int) -> None:
        if tried == 1:
            raise TeddyError(
                "synthesis: the memory does not hold one group of images; "
                "lower method.classes_per_group or data.image_size"
            ) from None
        torch.cuda.empty_cache()
        self._side_by_side = tried // 2
        self._say(f"synthesis: out of memory, going on with {self._side_by_side} groups side by side")


def drawn_teachers(
    pool: Pool, count: int, redraw: bool, in_turn: bool, generator: torch.Generator
) -> Iterator[tuple[Teacher, ...]]:
    """The teachers of each iteration, endlessly: `count` drawn once or anew each time, all together or one in turn."""
    drawn = pool.draw(count, generator)
    turn = 0
    while True:
        yield (drawn[turn % count],) if in_turn else drawn
        turn += 1
        # In turn, a new draw waits until each of the last has had its turn.
        if redraw and (not in_turn or turn % count == 0):
            drawn = pool.draw(count, generator)


def _by_teacher(drawn: Sequence[tuple[Teacher, ...]]) -> list[tuple[Teacher, list[int]]]:
    """Each teacher with the groups that drew it, always in the same order, since sums depend on theirs."""
    places: dict[str, tuple[Teacher, list[int]]] = {}
    for place, teachers in enumerate(drawn):
        for teacher in teachers:
            places.setdefault(teacher.name, (teacher, []))[1].append(place)
    return [places[name] for name in sorted(places)]


def _largest_power(number: int) -> int:
    """The largest power of two up to `number`: few sizes of pass, since each is compiled."""
    return 1 << (number.bit_length() - 1)
