"""Students: what each is trained on, and how."""

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn

from teddy import seeding
from teddy.checkpoint import Checkpoint
from teddy.config import AugmentSettings, EvaluationSettings, RelabelSettings, TrainingSettings
from teddy.data.augment import draw_change
from teddy.data.images import ImageSet
from teddy.data.loaders import Batch, Epochs, Loader
from teddy.data.source import Source
from teddy.matching.labels import cross_entropy, divergence, logit_error
from teddy.models.zoo import build_network
from teddy.progress import Stage
from teddy.relabel import Labelled
from teddy.run import Run
from teddy.stored_labels import Replay, record
from teddy.training import Loss, Training, accuracy, start_training, train_as

CURVE_POINTS = 12


@dataclass(frozen=True)
class Row:
    """One line of the table: which images, under which labels."""

    images: Literal["distilled", "random", "full"]
    labels: Literal["soft", "hard"]


ROWS = {
    "distilled": Row("distilled", "soft"),
    "random control": Row("random", "soft"),
    "distilled, hard labels": Row("distilled", "hard"),
    "random control, hard labels": Row("random", "hard"),
    "full data": Row("full", "hard"),
}


class Student(TypedDict):
    """One trained student: its final accuracy in per cent, and [step, accuracy] on the way."""

    accuracy: float
    curve: list[list[float]]


Places = dict[tuple[str, bool], Training]
"""Where students of a network train, those on the full data apart."""


def student_steps(row: Row, settings: EvaluationSettings, labelled: Labelled, source: Source) -> int:
    """Steps that a student of this row trains."""
    training = _training(row, settings)
    num_images = len(source.train) if row.images == "full" else len(labelled.distilled)
    return training.epochs * math.ceil(num_images / training.batch_size)


def train_student(
    network_name: str,
    row: Row,
    number: int,
    settings: EvaluationSettings,
    relabel: RelabelSettings,
    labelled: Labelled,
    source: Source,
    run: Run,
    stage: Stage,
    places: Places | None = None,
) -> tuple[nn.Module, Student]:
    """Student `number` of a row: the network, and its accuracies. Those who share `places` train there one after the
    other, so that little has to be prepared anew."""
    training = _training(row, settings)
    loader = _loader(row, number, settings, relabel, labelled, source, run)
    soft = _soft_loss(settings.loss, settings.hard_share, relabel.temperature)
    loss = soft if row.labels == "soft" else _hard_loss
    test, per_epoch = source.test.to(run.device), loader.batches_per_epoch
    steps = training.epochs * per_epoch
    marks = {math.ceil(training.epochs * point / CURVE_POINTS) * per_epoch for point in range(1, CURVE_POINTS + 1)}
    curve: list[list[float]] = []

    def measure(steps_done: int, trained: nn.Module) -> None:
        if steps_done in marks:
            curve.append([steps_done, round(accuracy(trained, test, source.preprocessing, run.engine), 3)])
        checkpoint.keep_training(started, steps_done, curve=torch.tensor(curve, dtype=torch.float64))

    path = ("student", network_name, number)
    with seeding.seeded(run.seed, *path):
        network = build_network(network_name, source.task)
    place = (network_name, row.images == "full")
    if places and place in places:
        started = places[place]
        started.restart(network)
    else:
        started = start_training(training, run.engine.place(network))
        if places is not None:
            places[place] = started
    checkpoint = Checkpoint(run, f"evaluation/training/{file_name(network_name, row, number)}.safetensors")
    first, kept = checkpoint.take_up_training(started)
    curve += [[int(step), value] for step, value in kept["curve"].tolist()] if kept else []
    if first:
        stage.step(first)
    trained = train_as(
        training, started, loader, loss, seed=seeding.derive(run.seed, *path), stage=stage, engine=run.engine,
        steps=range(first, steps), after_step=measure,
    )  # fmt: skip
    checkpoint.remove()
    return trained, {"accuracy": curve[-1][1], "curve": curve}


def file_name(network_name: str, row: Row, number: int) -> str:
    """What a student's files are called."""
    return f"{network_name.replace('/', '-')}-{row.images}-{row.labels}-{number}"


def _training(row: Row, settings: EvaluationSettings) -> TrainingSettings:
    return settings.full_data if row.images == "full" else settings.training


def _loader(
    row: Row,
    number: int,
    settings: EvaluationSettings,
    relabel: RelabelSettings,
    labelled: Labelled,
    source: Source,
    run: Run,
) -> Epochs:
    """What student `number` of a row sees. Each draws a random control of its own, so that the deviation includes the
    draw; order and augmentation are the same in all rows."""
    full = row.images == "full"
    changes: AugmentSettings = settings.full_data.augment if full else relabel.augment
    images: ImageSet
    if row.images == "distilled":
        images = labelled.distilled.images
    elif row.images == "random":
        per_class = len(labelled.distilled) // len(source.classes)
        images = source.draw(per_class, seeding.stream(run.seed, "control", number))
    else:
        images = source.train
    loader = Loader(
        images.to(run.device),
        source.preprocessing,
        source.task,
        batch_size=_training(row, settings).batch_size,
        seed=seeding.derive(run.seed, "student", "order", number),
        change=partial(draw_change, **changes.model_dump(exclude={"cutmix"})),
        cutmix_alpha=0.0 if full else relabel.augment.cutmix,
        label=labelled.label if row.labels == "soft" else None,
        even=run.engine.compiles and labelled.form is None,
    )
    if labelled.form is None or loader.label is None:
        return loader
    # The control's labels are stored in the same form.
    stored = labelled.stored if row.images == "distilled" else record(loader, labelled.form, relabel.temperature)
    assert stored is not None
    return Replay(loader.images, loader.preprocessing, loader.task, stored)


def _hard_loss(logits: Tensor, batch: Batch) -> Tensor:
    return cross_entropy(logits, batch.targets)


@cache  # the same function for the same loss: what was prepared for one student is found for the next
def _soft_loss(kind: Literal["kl", "mse"], hard_share: float, temperature: float) -> Loss:
    def loss(logits: Tensor, batch: Batch) -> Tensor:
        assert batch.teacher_logits is not None
        if kind == "kl":
            soft = divergence(logits, batch.teacher_logits, temperature)
        else:
            soft = logit_error(logits, batch.teacher_logits)
        return soft + hard_share * cross_entropy(logits, batch.targets) if hard_share else soft

    return loss
