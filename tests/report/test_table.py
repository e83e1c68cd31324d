"""What the table says beside the accuracies."""

import pytest

from teddy.report.table import mean_curve, steps_to_reach, time_saved
from teddy.students import Student


def student(*accuracies: float) -> Student:
    return {"accuracy": accuracies[-1], "curve": [[100.0 * (k + 1), value] for k, value in enumerate(accuracies)]}


@pytest.mark.parametrize(
    ("goal", "steps"), [(10, 50), (20, 100), (30, 150), (40, 200), (45, 250), (50, 300), (51, None), (0, 0)]
)
def test_steps_are_read_off_the_line_between_points(goal: float, steps: float | None):
    assert steps_to_reach([(100, 20), (200, 40), (300, 50)], goal) == steps


def test_a_curve_that_falls_counts_where_it_was_first():
    assert steps_to_reach([(100, 20), (200, 40), (300, 30), (400, 45)], 40) == 200


def test_curves_are_averaged_over_students():
    assert mean_curve({"0": student(10, 30), "1": student(20, 50)}) == [(100, 15), (200, 40)]


def test_what_is_told_stands_beside_its_control():
    results = {
        "net": {
            "distilled": {"0": student(20, 40, 60)},
            "random control": {"0": student(10, 30, 50)},
            "distilled, hard labels": {"0": student(5, 6, 7)},
            "random control, hard labels": {"0": student(6, 7, 8), "1": student(8, 9, 10)},
            "full data": {},
        }
    }
    assert time_saved(results, "net") == [
        "distilled: as good as the random control at its end (50.0 %) after 250 of 300 steps",
        "distilled, hard labels: as good as the random control at its end (9.0 %) not within 300 steps",
    ]
    del results["net"]["random control"]
    assert len(time_saved(results, "net")) == 1
