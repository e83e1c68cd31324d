"""Algorithm 1's loop: draw teachers, augment, compare, step, clamp; many groups of images at the same time.

Shapes: N images in all, G groups of B images in a wave, C channels, H × W pixels.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from teddy import seeding
from teddy.data.augment import Change, apply_change
from teddy.errors import TeddyError
from teddy.matching.statistics import GroupLabels
from teddy.pool.pool import Pool, Teacher
from teddy.progress import Stage
from teddy.synthesis.groups import Group, group_labels, make_waves
from teddy.synthesis.passes import Passed

DrawChange = Callable[[int, torch.Generator], Change]
Pass = Callable[[Tensor, GroupLabels, Teacher], Passed]


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
    at_once: int = 1,
    side_by_side: int = 1,
    say: Callable[[str], None] = lambda _: None,
    after_wave: Callable[[Sequence[Group], Tensor], None] = lambda *_: None,
) -> Tensor:
    """The images [N, C, H, W] that `start` becomes in these `groups`; `bounds` are black and white.

    `at_once` groups are brought to the device and stepped at the same time, `side_by_side` of them in one pass through
    a teacher. A group's result depends on neither but for rounding: it has its own statistics, augmentations, teachers.
    """
    result = start.clone()
    passes = _Passes(compute, side_by_side, say)
    for wave in make_waves(groups, at_once):
        rows = torch.cat([group.rows for group in wave])
        images = start[rows].to(device).requires_grad_()
        labels = group_labels(wave, device)
        augmentations = [seeding.stream(seed, "augment", group.number) for group in wave]
        draws = [
            drawn_teachers(pool, teachers, redraw, in_turn, seeding.stream(seed, "teachers", group.index))
            for group in wave
        ]
        fused = device.type == "cuda"
        optimizer = torch.optim.Adam(
            [images], lr=learning_rate, betas=(0.5, 0.9), weight_decay=weight_decay, fused=fused
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)
        for _ in range(iterations):
            changes = [change(labels.members.shape[1], generator) for generator in augmentations]
            changed = apply_change(images, _joined(changes))
            gradient, terms = passes.gather(changed, labels, [next(drawn) for drawn in draws])
            optimizer.zero_grad()
            changed.backward(gradient)
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                images.clamp_(*bounds)
            stage.step(len(wave), loss=sum(terms.values()), **terms)
        result[rows] = images.detach().to(start.device)
        after_wave(wave, result[rows])
    return result


class _Passes:
    """What all teachers say of a wave, pass by pass; where memory runs out, of fewer groups a pass."""

    def __init__(self, compute: Pass, side_by_side: int, say: Callable[[str], None]) -> None:
        self._compute, self._side_by_side, self._say = compute, side_by_side, say
        self._places: dict[tuple[int, ...], Tensor] = {}

    def gather(
        self, images: Tensor, labels: GroupLabels, drawn: Sequence[tuple[Teacher, ...]]
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
                places = self._on_device(tuple(part), images.device)
                try:
                    passed = self._compute(
                        given[places].flatten(0, 1), GroupLabels(*(each[places] for each in labels)), teacher
                    )
                except torch.cuda.OutOfMemoryError:
                    self._make_do_with(len(part))
                    continue
                gradient[places] += passed.gradient.unflatten(0, (len(part), -1))
                for name, values in passed.terms.items():
                    totals[name] = totals.get(name, 0) + values.sum() / num_groups
                del waiting[: len(part)]
        return gradient.flatten(0, 1), totals

    def _on_device(self, places: tuple[int, ...], device: torch.device) -> Tensor:
        """Kept, since bringing a list to the GPU waits for it."""
        if places not in self._places:
            self._places[places] = torch.tensor(places, device=device)
        return self._places[places]

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


def _joined(changes: Sequence[Change]) -> Change:
    """One after the other."""
    maps = [change.maps for change in changes if change.maps is not None]
    offsets = [change.offsets for change in changes if change.offsets is not None]
    return Change(torch.cat(maps) if maps else None, torch.cat(offsets) if offsets else None)
