"""How many groups of images are stepped at the same time, and how many of them share a pass through a teacher."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from teddy.config import MethodSettings
from teddy.data.memory import free_memory
from teddy.engine import Engine
from teddy.pool.pool import Pool
from teddy.synthesis.groups import Group, group_labels
from teddy.synthesis.passes import Objective, Passes
from teddy.synthesis.real import Real, RealImages

USUAL_PIXELS = 100 * 64**2  # of a pass
IMAGES_PER_PASS = 1600  # from here on a GPU gains nothing
PASS_SHARE = 0.5  # of the free memory
STATES = 8  # copies of an image that stepping holds: itself, its gradient, Adam's two, augmented, theirs
STATES_SHARE = 0.2  # of the free memory, which a pass needs more of
MOST_AT_ONCE = 64


def groups_side_by_side(
    start: Tensor,
    groups: Sequence[Group],
    pool: Pool,
    objective: Objective,
    engine: Engine,
    wanted: int | Literal["auto"] = "auto",
    real_images: RealImages | None = None,
) -> int:
    """As many as fill a GPU and fit into its memory, which one group that is passed through as a trial tells.

    On a CPU one: its caches are small, and its results are to be the same bit for bit.
    """
    if wanted != "auto":
        return wanted
    if engine.device.type != "cuda":
        return 1
    most = max(IMAGES_PER_PASS // len(groups[0].rows), 1)
    plain = Passes(objective, replace(engine, compiles=False, captures=False, fuses=False))
    images, labels = start[groups[0].rows].to(engine.device), group_labels(groups[:1], engine.device)
    real = None
    if real_images:
        drawn = real_images.draw(labels.classes[0].cpu(), torch.Generator())
        real = Real(drawn, real_images.labels(labels.classes))
    try:
        plain(images, labels, pool.teachers[0], real)  # the first one also tries convolutions
        torch.cuda.reset_peak_memory_stats(engine.device)
        before = torch.cuda.memory_allocated(engine.device)
        plain(images, labels, pool.teachers[0], real)
    except torch.cuda.OutOfMemoryError:
        return 1  # and where one does not fit, synthesis says so
    taken = torch.cuda.max_memory_allocated(engine.device) - before
    return max(min(most, int(PASS_SHARE * free_memory(engine.device)) // taken), 1)


def usual_passes(start: Tensor, groups: Sequence[Group], settings: MethodSettings) -> int:
    """All passes of these groups and of the real images drawn for them, counted in those of a hundred images of
    64 × 64: whether to compile depends on how much there is to compute, and a group may be a thousand images."""
    drawn = settings.real_images if settings.targets == "drawn" else 0
    images = sum(made + drawn * classes for made, classes in (group.shape for group in groups))
    teachers = 1 if settings.turns == "one" else settings.teachers
    return settings.iterations * teachers * images * start[0, 0].numel() // USUAL_PIXELS


def groups_at_once(group: Tensor, device: torch.device) -> int:
    """As many as their pixels and their optimizer's state leave room for; on a CPU, which gains nothing by it, one."""
    if device.type != "cuda":
        return 1
    bytes_each = STATES * group.numel() * group.element_size()
    return max(min(int(STATES_SHARE * free_memory(device)) // bytes_each, MOST_AT_ONCE), 1)
