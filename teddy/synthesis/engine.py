"""Algorithm 1's loop: draw teachers, augment, compare, step, clamp.

Shapes: N images in all, B in a group, C channels, H × W pixels.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from teddy import seeding
from teddy.pool.pool import Pool, Teacher
from teddy.progress import Stage
from teddy.synthesis.groups import Group

Objective = Callable[[Tensor, Tensor, Sequence[Teacher]], dict[str, Tensor]]
"""Images [B, C, H, W], labels [B] and teachers → the weighted terms whose sum is minimised."""


def synthesize_images(
    start: Tensor,
    groups: Sequence[Group],
    pool: Pool,
    objective: Objective,
    *,
    bounds: tuple[Tensor, Tensor],
    change: Callable[[Tensor, torch.Generator], Tensor],
    iterations: int,
    learning_rate: float,
    weight_decay: float,
    teachers: int,
    redraw: bool,
    in_turn: bool,
    seed: int,
    stage: Stage,
) -> Tensor:
    """The images [N, C, H, W] that `start` becomes; `bounds` are black and white.

    A group's result depends on its own number and index only, not on the groups before it.
    """
    result = start.clone()
    for group in groups:
        images = start[group.rows].clone().requires_grad_()
        labels = group.labels.to(start.device)
        augmentations = seeding.stream(seed, "augment", group.number)
        draws = drawn_teachers(pool, teachers, redraw, in_turn, seeding.stream(seed, "teachers", group.index))
        optimizer = torch.optim.Adam([images], lr=learning_rate, betas=(0.5, 0.9), weight_decay=weight_decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)
        for _ in range(iterations):
            terms = objective(change(images, augmentations), labels, next(draws))
            loss = torch.stack(list(terms.values())).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                images.clamp_(*bounds)
            stage.step(loss=loss, **terms)
        result[group.rows] = images.detach()
    return result


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
