"""The result table: every accuracy beside its controls."""

import math
from dataclasses import dataclass

from teddy.evaluation import Results, Score
from teddy.students import ROWS


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


def _spread(figure: str, spread: float) -> str:
    return figure if math.isnan(spread) else f"{figure} ± {spread:.1f}"
