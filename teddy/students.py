"""Students: what each is trained on, and how."""

import math
from collections.abc import Sequence
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
from teddy.data.together import together
from teddy.engine import Engine
from teddy.matching.labels import cross_entropy, divergence, logit_error
from teddy.models.several import as_one, draws_in_training, each_of
from teddy.models.zoo import build_network
from teddy.progress import Stage
from teddy.relabel import Labelled
from teddy.run import Run
from teddy.stored_labels import Replay, record
from teddy.training import Loss, Training, accuracy, of_each, start_training, train_as

TRAINING = "evaluation/training"  # state of those that are under way
CURVE_POINTS = 12
ENOUGH_PIXELS, MOST_AT_ONCE = 50 * 64 * 64, 8  # students that make as many pixels a step fill a GPU


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


Trained = list[tuple[nn.Module, Student]]
Places = dict[tuple[str, bool, int], Training]
"""Where so many students of a network train at the same time, those on the full data apart."""


def num_students(row: Row, settings: EvaluationSettings) -> int:
    """Students of this row."""
    if row.images == "full":
        return settings.full_data_seeds
    if row.labels not in settings.labels:
        return 0
    return min(settings.hard_seeds or settings.seeds, settings.seeds) if row.labels == "hard" else settings.seeds


def student_steps(row: Row, settings: EvaluationSettings, labelled: Labelled, source: Source) -> int:
    """Steps that a student of this row trains."""
    training = _training(row, settings)
    return training.epochs * math.ceil(_num_images(row, labelled, source) / training.batch_size)


def student_groups(
    network_name: str,
    row: Row,
    numbers: Sequence[int],
    settings: EvaluationSettings,
    labelled: Labelled,
    source: Source,
    engine: Engine,
    wanted: int | Literal["auto"] = "auto",
) -> list[list[int]]:
    """The students of a row, those together that train at the same time: at most as many as are `wanted`, or as fill a
    GPU where steps are captured."""
    if not numbers:
        return []
    most = 1 if wanted == "auto" else wanted
    if wanted == "auto" and engine.for_steps(student_steps(row, settings, labelled, source)).captures:
        batch_size = min(_training(row, settings).batch_size, _num_images(row, labelled, source))
        most = max(min(ENOUGH_PIXELS // (batch_size * source.image_size**2), MOST_AT_ONCE), 1)
    streamed = row.images == "full" and source.form == "streamed"
    # What is drawn in a step comes from one seed, and would depend on who else is trained.
    if most > 1 and (streamed or draws_in_training(network_name, source.task)):
        most = 1
    return [part.tolist() for part in torch.tensor(numbers).tensor_split(math.ceil(len(numbers) / most))]


def train_students(
    network_name: str,
    row: Row,
    numbers: Sequence[int],
    settings: EvaluationSettings,
    relabel: RelabelSettings,
    labelled: Labelled,
    source: Source,
    run: Run,
    stage: Stage,
    places: Places | None = None,
) -> Trained:
    """Students `numbers` of a row, all at the same time: each one's network, and its accuracies. Those who share
    `places` train there one after the other, so that little has to be prepared anew."""
    training = _training(row, settings)
    loader = student_loader(row, numbers, settings, relabel, labelled, source, seed=run.seed, engine=run.engine)
    loss = student_loss(row, settings, relabel, len(numbers))
    test, per_epoch = source.test.to(run.device), loader.batches_per_epoch
    steps = training.epochs * per_epoch
    marks = {math.ceil(training.epochs * point / CURVE_POINTS) * per_epoch for point in range(1, CURVE_POINTS + 1)}
    curves: list[list[float]] = []  # a step, and the accuracy of each student

    def measure(steps_done: int, trained: nn.Module) -> None:
        if steps_done in marks:
            reached = [accuracy(each, test, source.preprocessing, run.engine) for each in each_of(trained)]
            curves.append([steps_done, *(round(value, 3) for value in reached)])
        checkpoint.keep_training(started, steps_done, curve=torch.tensor(curves, dtype=torch.float64))

    networks = []
    for number in numbers:
        with seeding.seeded(run.seed, "student", network_name, number):
            networks.append(build_network(network_name, source.task))
    network = as_one(networks)
    place = (network_name, row.images == "full", len(numbers))
    if places and place in places:
        started = places[place]
        started.restart(network)
    else:
        started = start_training(training, run.engine.place(network))
        if places is not None:
            places[place] = started
    checkpoint = Checkpoint(run, f"{TRAINING}/{file_name(network_name, row, *numbers)}.safetensors")
    first, kept = checkpoint.take_up_training(started)
    curves += [[int(step), *values] for step, *values in kept["curve"].tolist()] if kept else []
    if first:
        stage.step(first)
    seed = seeding.derive(run.seed, "student", network_name, numbers[0])  # several draw nothing from it
    trained = train_as(
        training, started, loader, loss, seed=seed, stage=stage, engine=run.engine, steps=range(first, steps),
        after_step=measure,
    )  # fmt: skip
    checkpoint.remove()
    return [
        (each, {"accuracy": curves[-1][column], "curve": [[values[0], values[column]] for values in curves]})
        for column, each in enumerate(each_of(trained), start=1)
    ]


def file_name(network_name: str, row: Row, *numbers: int) -> str:
    """What the files of a student, or of those who train at the same time, are called."""
    return "-".join([network_name.replace("/", "-"), row.images, row.labels, *map(str, numbers)])


def student_loader(
    row: Row,
    numbers: Sequence[int],
    settings: EvaluationSettings,
    relabel: RelabelSettings,
    labelled: Labelled,
    source: Source,
    *,
    seed: int,
    engine: Engine,
) -> Epochs:
    """What students `numbers` of a row see. Each draws a random control of its own, so that the deviation includes the
    draw; order and augmentation are the same in all rows."""
    common: ImageSet | None = None
    if row.images != "random":
        common = (labelled.distilled.images if row.images == "distilled" else source.train).to(engine.device)
    loaders = []
    for number in numbers:
        images = _random_control(number, labelled, source, seed).to(engine.device) if common is None else common
        order = seeding.derive(seed, "student", "order", number)
        loaders.append(_loader(row, images, order, settings, relabel, labelled, source, engine))
    alone = relabel.statistics == "batch"  # what teachers say of an image then depends on those beside it
    return together(loaders, label_at_once=engine.captures and not alone)


def student_loss(row: Row, settings: EvaluationSettings, relabel: RelabelSettings, count: int = 1) -> Loss:
    """What students of a row lose; of several at the same time, what each loses on its part."""
    soft = _soft_loss(settings.loss, settings.hard_share, relabel.temperature)
    loss = soft if row.labels == "soft" else _hard_loss
    return of_each(loss, count) if count > 1 else loss


def _random_control(number: int, labelled: Labelled, source: Source, seed: int) -> ImageSet:
    per_class = len(labelled.distilled) // len(source.classes)
    return source.draw(per_class, seeding.stream(seed, "control", number))


def _num_images(row: Row, labelled: Labelled, source: Source) -> int:
    return len(source.train) if row.images == "full" else len(labelled.distilled)


def _training(row: Row, settings: EvaluationSettings) -> TrainingSettings:
    return settings.full_data if row.images == "full" else settings.training


def _loader(
    row: Row,
    images: ImageSet,
    order: int,
    settings: EvaluationSettings,
    relabel: RelabelSettings,
    labelled: Labelled,
    source: Source,
    engine: Engine,
) -> Epochs:
    full = row.images == "full"
    changes: AugmentSettings = settings.full_data.augment if full else relabel.augment
    loader = Loader(
        images,
        source.preprocessing,
        source.task,
        batch_size=_training(row, settings).batch_size,
        seed=order,
        change=partial(draw_change, **changes.model_dump(exclude={"cutmix"})),
        cutmix_alpha=0.0 if full else relabel.augment.cutmix,
        label=labelled.label if row.labels == "soft" else None,
        even=engine.compiles and labelled.form is None,
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
