"""The result table: every accuracy beside its controls."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from teddy.evaluation import Results, Score
from teddy.students import ROWS, Student


@dataclass(frozen=True)
class Line:
    """A row of the table, in words."""

    row: str
    accuracy: str
    n: int
    ior: str


def result_lines(results: Results, network: str) -> list[Line]:
    """The rows that are there for one network; IOR stands where there is a control for it."""
    scores = {row: Score.final(students) for row, students in results[network].items() if students}
    lines = []
    for row in ROWS:
        if row not in scores:
            continue
        score = scores[row]
        control = row.replace("distilled", "random control")
        ior = ""
        if control != row and control in scores:
            gain, error = score.over(scores[control])
            ior = _spread(f"{gain:+.1f}", error)
        lines.append(Line(row, _spread(f"{score.mean:.1f}", score.deviation), score.n, ior))
    return lines


def time_saved(results: Results, network: str) -> list[str]:
    """In words, for each kind of labels: how soon students of the distilled images are as good as the control's at the
    end. The gap in accuracy shrinks as students train longer; this is what is left of it then."""
    told = []
    for row, students in results[network].items():
        control = results[network].get(row.replace("distilled", "random control"), {})
        if not row.startswith("distilled") or not students or not control:
            continue
        goal = Score.final(control).mean
        steps = steps_to_reach(mean_curve(students), goal)
        last = mean_curve(students)[-1][0]
        when = f"after {steps:,.0f} of {last:,.0f} steps" if steps is not None else f"not within {last:,.0f} steps"
        told.append(f"{row}: as good as the random control at its end ({goal:.1f} %) {when}")
    return told


def mean_curve(students: dict[str, Student]) -> list[tuple[float, float]]:
    """Steps and the mean accuracy of all students there."""
    curves = [student["curve"] for student in students.values()]
    return [(points[0][0], statistics.mean(point[1] for point in points)) for points in zip(*curves, strict=True)]


def steps_to_reach(curve: Sequence[tuple[float, float]], goal: float) -> float | None:
    """The first step at which a curve is at `goal`, on a line between its points; None if it never is."""
    before = (0.0, 0.0)
    for point in curve:
        if point[1] >= goal:
            share = (goal - before[1]) / (point[1] - before[1]) if point[1] > before[1] else 1.0
            return before[0] + share * (point[0] - before[0])
        before = point
    return None


def _spread(figure: str, spread: float) -> str:
    return figure if math.isnan(spread) else f"{figure} ± {spread:.1f}"
