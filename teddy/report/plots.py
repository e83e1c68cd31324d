"""The report's plots, as SVG text."""

import statistics
from collections.abc import Sequence
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from teddy.evaluation import Results, Score
from teddy.pool.store import Member
from teddy.students import ROWS, Student

COLOURS = {
    "distilled": "#c2410c",
    "random control": "#57534e",
    "distilled, hard labels": "#fb923c",
    "random control, hard labels": "#a8a29e",
    "full data": "#0f766e",
}
SMOOTHED = 7  # points on either side: crops and teachers change from step to step
STYLE: dict[Any, Any] = {"svg.hashsalt": "teddy", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}


def accuracy_bars(results: Results, network: str) -> str:
    """Mean and deviation of each row."""
    figure, axes = _figure("")
    rows = [name for name in ROWS if results[network].get(name)]
    for place, row in enumerate(rows):
        score = Score.final(results[network][row])
        spread = score.deviation if score.n > 1 else 0.0
        axes.barh(place, score.mean, xerr=spread or None, color=COLOURS[row], height=0.6, capsize=3)
        axes.text(score.mean + spread + 1.5, place, f"{score.mean:.1f}", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlim=(0, 110), xticks=range(0, 101, 20), xlabel="accuracy, %")
    axes.invert_yaxis()
    return _svg(figure)


def student_curves(results: Results, network: str) -> str:
    """Accuracy against training steps, distilled and controls in one plot; bands are deviations."""
    rows = [row for row in ROWS if row != "full data" and results[network].get(row)]
    return compared_curves([(row, COLOURS[row], list(results[network][row].values())) for row in rows])


def compared_curves(lines: Sequence[tuple[str, str, Sequence[Student]]]) -> str:
    """Accuracy against training steps of some students for each (name, colour); bands are deviations."""
    figure, axes = _figure("accuracy, %")
    for name, colour, students in lines:
        steps = [step for step, _ in students[0]["curve"]]
        points = [Score.of(student["curve"][k][1] for student in students) for k in range(len(steps))]
        axes.plot(steps, [point.mean for point in points], color=colour, label=name)
        low, high = ([p.mean - p.deviation for p in points], [p.mean + p.deviation for p in points])
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("student's steps")
    axes.legend(frameon=False)
    return _svg(figure)


def loss_curves(points: Sequence[dict[str, float]]) -> str:
    """The objective's terms over all steps of the synthesis."""
    figure, axes = _figure("loss")
    steps = [point["step"] for point in points]
    for colour, name in enumerate(key for key in points[0] if key != "step"):
        values = [point[name] for point in points]
        axes.plot(steps, values, color=f"C{colour}", alpha=0.3, linewidth=0.7)
        smooth = [statistics.mean(values[max(k - SMOOTHED, 0) : k + SMOOTHED + 1]) for k in range(len(values))]
        axes.plot(steps, smooth, color=f"C{colour}", label=name, linewidth=1.3)
    axes.set(yscale="log", xlabel="synthesis step, groups one after the other")
    axes.legend(frameon=False)
    return _svg(figure)


def pool_accuracies(members: Sequence[Member]) -> str:
    """Each weak teacher's accuracy: at its epoch, or in order where they are pruned."""
    figure, axes = _figure("test accuracy, %")
    pruned = members[0]["widths"] is not None
    places = [number + 1 if pruned else member["epoch"] for number, member in enumerate(members)]
    scores = [member["accuracy"] for member in members]
    one_base = len(set(places)) == len(places)
    axes.plot(places, scores, "o-" if one_base else "o", color="#0f766e")
    for place, score in zip(places, scores, strict=True) if one_base else ():
        axes.annotate(
            f"{score:.1f}", (place, score), textcoords="offset points", xytext=(0, 6), ha="center", fontsize=7
        )
    axes.set_xlabel("pruned networks, weakest first" if pruned else "epoch of the base network")
    axes.margins(y=0.15)
    return _svg(figure)


def _figure(ylabel: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.2, 2.9), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel(ylabel)
    return figure, axes


def _svg(figure: Figure) -> str:
    text = StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
