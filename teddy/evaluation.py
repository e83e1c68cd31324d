"""What a distilled set is worth: students trained from scratch on it and on its controls, all in the same way.

The controls are always there: as many random real images with the same soft labels, both with hard labels only, and
the full data. IOR, the improvement over random, is what the distilled images add (docs/EVALUATION.md).
"""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch

from teddy.config import EvaluationSettings, RelabelSettings
from teddy.data.source import Source
from teddy.errors import NumbersError, TeddyError
from teddy.files import read_checked
from teddy.relabel import Labelled
from teddy.run import Run
from teddy.students import (
    ROWS,
    TRAINING,
    Places,
    Student,
    Trained,
    file_name,
    num_students,
    student_groups,
    student_steps,
    train_students,
)
from teddy.training import is_finite

RESULTS = "evaluation/results.json"
STUDENTS = "evaluation/students"  # those that are finished while others are not
Results = dict[str, dict[str, dict[str, Student]]]
"""Network → row → seed → student."""


@dataclass(frozen=True)
class Score:
    """Mean and sample deviation over n students; of a single one the deviation is not known, and NaN."""

    mean: float
    deviation: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Score":
        """Of some accuracies."""
        values = list(values)
        return cls(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else math.nan, len(values))

    @classmethod
    def final(cls, students: dict[str, Student]) -> "Score":
        """Of students' final accuracies: the last epoch's, never the best one's."""
        return cls.of(student["accuracy"] for student in students.values())

    def over(self, other: "Score") -> tuple[float, float]:
        """How much this mean is above the other, and the standard error of that."""
        error = math.sqrt(self.deviation**2 / self.n + other.deviation**2 / other.n)
        return self.mean - other.mean, error


def evaluate_students(
    settings: EvaluationSettings,
    relabel: RelabelSettings,
    labelled: Labelled,
    source: Source,
    run: Run,
) -> Results:
    """Train whatever students are missing in the run folder; each is kept as soon as it is there."""
    results = _results_so_far(settings, run)
    places: Places = {}
    lost: list[str] = []
    missing = run.world.share(_missing(settings, results))
    for (network_name, row_name), some in groupby(missing, key=lambda student: student[:2]):
        numbers, row = [number for *_, number in some], ROWS[row_name]
        groups = student_groups(network_name, row, numbers, settings, labelled, source, run.engine, run.students)
        steps = len(groups) * student_steps(row, settings, labelled, source)
        smaller = f"evaluation.{'full_data' if row.images == 'full' else 'training'}.batch_size"
        title = f"{network_name}: {row_name}"
        with run.stage(f"students/{network_name}/{row_name}", title, steps, smaller=smaller) as stage:
            train = partial(
                train_students, network_name, row, settings=settings, relabel=relabel, labelled=labelled,
                source=source, run=run, stage=stage, places=places,
            )  # fmt: skip
            for group, at_once in _as_memory_allows(train, groups, places, run):
                for number, (trained, student) in zip(group, at_once, strict=True):
                    if is_finite(trained):
                        name = file_name(network_name, row, number)
                        run.write_json(f"{STUDENTS}/{name}.json", [network_name, row_name, str(number), student])
                    else:
                        lost.append(f"student {number} of {network_name}, {row_name}")
    run.world.wait("students")
    run.once("results", partial(_write_results, settings, run))
    if lost:
        raise NumbersError(
            f"{lost[0]}{f' and {len(lost) - 1} more' if lost[1:] else ''}: the weights are not finite at the end of "
            "training; the other students are kept; lower the learning rate of evaluation.training or full_data"
        )
    final: Results = run.read_json(RESULTS)
    return final


def _as_memory_allows(
    train: Callable[[Sequence[int]], Trained], groups: Sequence[Sequence[int]], places: Places, run: Run
) -> Iterator[tuple[Sequence[int], Trained]]:
    """Each group with what it was trained to; those that do not fit into memory together are halved."""
    waiting = list(groups)
    while waiting:
        group, trained = waiting.pop(0), None
        try:
            trained = train(group)
        except torch.cuda.OutOfMemoryError:
            if len(group) == 1:
                raise
        if trained is not None:
            yield group, trained
            continue
        places.clear()  # and with the error everything else that held on to their tensors
        torch.cuda.empty_cache()
        half = (len(group) + 1) // 2
        run.say(f"students: out of memory, going on with {half} at the same time")
        waiting = [some[at : at + half] for some in [group, *waiting] for at in range(0, len(some), half)]


def _missing(settings: EvaluationSettings, results: Results) -> list[tuple[str, str, int]]:
    """The students that are still to be trained: network, row, number."""
    every = [
        (network, name, number)
        for network in settings.networks
        for name, row in ROWS.items()
        for number in range(num_students(row, settings))
    ]
    return [student for student in every if str(student[2]) not in results.get(student[0], {}).get(student[1], {})]


def _results_so_far(settings: EvaluationSettings, run: Run) -> Results:
    """The table, with the students that have been finished since it was written."""
    before: Results = run.read_json(RESULTS) if run.has(RESULTS) else {}
    finished: dict[tuple[str, str], dict[str, Student]] = {}
    for file in sorted((run.folder / STUDENTS).glob("*.json")):
        try:
            network, row, number, student = json.loads(read_checked(run.folder, f"{STUDENTS}/{file.name}"))
        except TeddyError:  # damaged: trained again
            continue
        finished.setdefault((network, row), {})[number] = student
    results: Results = {}
    for network in dict.fromkeys([*before, *settings.networks]):
        for row in ROWS:
            students = before.get(network, {}).get(row, {}) | finished.get((network, row), {})
            results.setdefault(network, {})[row] = dict(sorted(students.items(), key=lambda item: int(item[0])))
    return results


def _write_results(settings: EvaluationSettings, run: Run) -> None:
    run.write_json(RESULTS, _results_so_far(settings, run))
    run.remove(STUDENTS)
    run.remove(TRAINING)  # of students that were then trained beside others than before
