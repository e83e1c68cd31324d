"""A pool as a table: its members, what they cost, how far they are from a student (the paper's Fig. 2c)."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from teddy.config import Config
from teddy.data.images import ImageSet, in_order
from teddy.data.preprocessing import Preprocessing
from teddy.data.source import Source
from teddy.matching.labels import divergence
from teddy.pool.store import Index, read_teachers
from teddy.relabel import Labelled
from teddy.run import Run
from teddy.students import ROWS, student_steps, train_students
from teddy.training import evaluating

ROW = ROWS["distilled"]
WIDTHS_SHOWN = 4
BATCH = 500


@dataclass(frozen=True)
class ShownMember:
    """A line of the table.

    `epochs` count the base's training, or the fine-tuning of a pruned member at `learning_rate`; `distance` is
    KL(teacher ‖ student) in nats, the mean over the test images.
    """

    name: str
    epochs: float
    learning_rate: float | None
    widths: str | None
    accuracy: float
    macs: int
    parameters: int
    bytes: int
    distance: float | None


def shown_members(index: Index, distances: Sequence[float] | None = None) -> list[ShownMember]:
    """The members in order, weakest first."""
    members = index["members"]
    return [
        ShownMember(
            member["name"],
            member["epoch"],
            member["learning_rate"],
            _widths(member["widths"]) if member["widths"] else None,
            member["accuracy"],
            member["macs"],
            member["parameters"],
            member["bytes"],
            distance,
        )
        for member, distance in zip(members, distances or itertools.repeat(None), strict=False)
    ]


def student_distances(folder: Path, config: Config, labelled: Labelled, source: Source, run: Run) -> list[float]:
    """Train the first student of the run's evaluation again, and compare it with each teacher on the test images."""
    name = config.evaluation.networks[0]
    steps = student_steps(ROW, config.evaluation, labelled, source)
    with run.stage("distance", f"{name}: distilled", steps, smaller="evaluation.training.batch_size") as stage:
        ((student, _),) = train_students(
            name, ROW, [0], config.evaluation, config.relabel, labelled, source, run, stage
        )  # fmt: skip
    test = source.test.to(run.device)
    return [
        distance(teacher.network, student, test, source.preprocessing)
        for teacher in read_teachers(folder, source.task, run.engine)
    ]


@torch.inference_mode()
def distance(teacher: nn.Module, student: nn.Module, images: ImageSet, preprocessing: Preprocessing) -> float:
    """The mean KL divergence of the student's prediction from the teacher's."""
    total = 0.0
    with evaluating(teacher), evaluating(student):
        for part in in_order(images, BATCH):
            given = preprocessing.normalise(part.pixels)
            total += float(divergence(student(given), teacher(given), temperature=1.0)) * len(part)
    return total / len(images)


def _widths(widths: dict[str, int]) -> str:
    different = sorted(set(list(widths.values())[:-1]))  # the last is the classifier's
    if len(different) <= WIDTHS_SHOWN:
        return "/".join(map(str, different))
    return f"{different[0]}–{different[-1]}"
