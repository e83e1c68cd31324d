"""How much of synthesis is done at the same time, and whether that is worth preparing for."""

import pytest
import torch

from teddy.config import MethodSettings
from teddy.synthesis.groups import make_groups
from teddy.synthesis.size import groups_at_once, usual_passes

DRAWN = {"statistics": "class-wise", "targets": "drawn"}


@pytest.mark.parametrize(
    ("classes", "ipc", "size", "settings", "expected"),
    [
        (100, 1, 64, {"iterations": 400, "teachers": 1}, 400),
        (100, 3, 64, {"iterations": 400, "teachers": 1}, 3 * 400),
        (100, 1, 64, {"iterations": 400, "teachers": 3}, 3 * 400),
        (100, 1, 64, {"iterations": 400, "teachers": 3, "turns": "one"}, 400),
        (100, 10, 64, {"iterations": 400, "teachers": 1, "images_per_class": 10}, 10 * 400),  # one group of a thousand
        (10, 10, 32, {"iterations": 400, "teachers": 1, "images_per_class": 10}, 100),
        (10, 10, 32, {"iterations": 400, "images_per_class": 10, "teachers": 1, **DRAWN, "real_images": 50}, 600),
    ],
)
def test_passes_are_counted_by_their_pixels(
    classes: int, ipc: int, size: int, settings: dict[str, object], expected: int
):
    method = MethodSettings(**settings)  # type: ignore[arg-type]
    groups = make_groups(
        classes, ipc, classes_per_group=method.classes_per_group, images_per_class=method.images_per_class
    )
    start = torch.empty(1, 1, 1, 1).expand(classes * ipc, 3, size, size)
    assert usual_passes(start, groups, method) == expected
    assert usual_passes(start, groups[:0], method) == 0


def test_a_cpu_steps_one_group_at_a_time():
    assert groups_at_once(torch.zeros(100, 3, 8, 8), torch.device("cpu")) == 1
