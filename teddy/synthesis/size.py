"""How many groups of images are stepped at the same time, and how many of them share a pass through a teacher."""

from typing import Literal

import torch
from torch import Tensor

from teddy.data.memory import free_memory
from teddy.engine import Engine

IMAGES_PER_PASS = 800  # from here on a GPU gains little
STATES = 8  # copies of an image that stepping holds: itself, its gradient, Adam's two, augmented, theirs
STATES_SHARE = 0.2  # of the free memory, which a pass needs more of
MOST_AT_ONCE = 64


def groups_side_by_side(engine: Engine, wanted: int | Literal["auto"], group_size: int) -> int:
    """On a CPU one: its caches are small, and its results are to be the same bit for bit."""
    if wanted != "auto":
        return wanted
    return max(IMAGES_PER_PASS // group_size, 1) if engine.device.type == "cuda" else 1


def groups_at_once(group: Tensor, device: torch.device) -> int:
    """As many as their pixels and their optimizer's state leave room for; on a CPU, which gains nothing by it, one."""
    if device.type != "cuda":
        return 1
    bytes_each = STATES * group.numel() * group.element_size()
    return max(min(int(STATES_SHARE * free_memory(device)) // bytes_each, MOST_AT_ONCE), 1)
