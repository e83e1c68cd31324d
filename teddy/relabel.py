"""Ensemble soft labels: of the images as they are, and of augmented ones, online from the pool or stored."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from teddy import seeding
from teddy.config import Config
from teddy.data.augment import draw_change
from teddy.data.images import Images
from teddy.data.loaders import Loader
from teddy.data.source import Source
from teddy.distilled import FOLDER, DistilledSet, read_distilled, write_distilled
from teddy.engine import Engine, side_by_side
from teddy.matching.labels import ensemble
from teddy.models.folded import folded
from teddy.models.layers import normalising_by_batch
from teddy.pieces import Pieces
from teddy.pool.pool import Pool
from teddy.run import Run
from teddy.stored_labels import FILE as STORED
from teddy.stored_labels import Form, choose_form, join_epochs, record_epoch, stored_bytes

LABELLING_BATCH = 500
PIECES = "relabel"
PLAIN, RECORDED = f"{PIECES}/plain", f"{PIECES}/recorded"  # labels that are there while others are not
ARRIVED = 0.7  # of a student's epochs: from there on the strongest teachers label, where they take turns
Ensemble = Callable[[Tensor], Tensor]
"""Normalised images [B, C, H, W] → soft labels [B, K], in logits."""
Labeller = Callable[[Tensor, int], Tensor]
"""The same of images and the epoch, from 0 on, in which a student sees them."""


@dataclass(frozen=True)
class Labelled:
    """The distilled set, the ensemble that labels whatever is made of its images, and the labels stored, if any."""

    distilled: DistilledSet
    label: Labeller
    form: Form | None = None
    stored: dict[str, Tensor] | None = None


def make_ensemble(
    networks: Sequence[nn.Module],
    average: Literal["logits", "probabilities"],
    temperature: float,
    engine: Engine,
    statistics: Literal["running", "batch"] = "running",
) -> Ensemble:
    """Y = 1/|M| Σ h(A(X); θ), the last line of Algorithm 1."""
    if statistics == "batch":
        networks = [normalising_by_batch(network) for network in networks]
    elif engine.captures and engine.half:
        networks = [folded(network, torch.bfloat16) for network in networks]

    @torch.no_grad()
    def label(images: Tensor) -> Tensor:
        with engine.autocast():
            logits = side_by_side([partial(network, images) for network in networks], engine)
        return ensemble(torch.stack(logits).float(), average, temperature)

    return engine.replayed(label)


def make_labeller(
    networks: Sequence[nn.Module], make: Callable[[Sequence[nn.Module]], Ensemble], epochs: int, at_once: int | None
) -> Labeller:
    """All networks together in every epoch; or `at_once` of them, from the first ones on to the last."""
    size = at_once or len(networks)
    ensembles = [make(networks[first : first + size]) for first in range(len(networks) - size + 1)]
    return lambda images, epoch: ensembles[turn_of(epoch, epochs, len(ensembles))](images)


def turn_of(epoch: int, epochs: int, turns: int) -> int:
    """Whose turn it is: all have even shares of the epochs until ARRIVED, the last one those after it too."""
    return min(int(turns * epoch / (ARRIVED * epochs)), turns - 1)


def relabel(config: Config, images: Images, pool: Pool, source: Source, run: Run) -> Labelled:
    """The distilled set of this run: labelled and left in its folder, if it is not there yet, and read."""
    settings = config.relabel
    teachers = pool.teachers if settings.teachers == "all" else pool.spread(settings.teachers)
    steps = config.evaluation.training.epochs * math.ceil(len(images) / config.evaluation.training.batch_size)
    engine = run.engine.for_steps(steps)
    networks = [each.network for each in teachers]
    make = partial(make_ensemble, average=settings.average, temperature=settings.temperature, engine=engine)
    label = make_labeller(
        networks, partial(make, statistics=settings.statistics), config.evaluation.training.epochs, settings.at_once
    )
    plain_label = make(networks)  # by running statistics: they lie class after class, and a batch's would be of a few
    loader = Loader(
        images.to(run.device),
        source.preprocessing,
        source.task,
        batch_size=config.evaluation.training.batch_size,
        seed=seeding.derive(run.seed, "relabel"),
        change=partial(draw_change, **settings.augment.model_dump(exclude={"cutmix"})),
        cutmix_alpha=settings.augment.cutmix,
        label=label,
    )
    form = _form(config, loader) if settings.labels == "stored" else None
    if not run.has(FOLDER):
        parts = torch.arange(len(images)).split(LABELLING_BATCH)
        plain, recorded = Pieces(run, PLAIN), Pieces(run, RECORDED)
        numbers, epochs = range(len(parts)), range(form.epochs if form else 0)
        missing = plain.missing(numbers), recorded.missing(epochs)
        left = [run.world.share(part) for part in missing]
        title = f"labels of {len(teachers)} teachers"
        with run.stage("relabel", title, sum(map(len, left)), smaller="evaluation.training.batch_size") as stage:
            for number in left[0]:
                part = images.take(parts[number]).to(run.device)
                plain.keep(number, {"logits": plain_label(source.preprocessing.normalise(part.pixels))})
                stage.step()
            for number in left[1]:
                assert form
                recorded.keep(number, record_epoch(loader, number, form, settings.temperature))
                stage.step()
        run.world.wait("labels")

        def write() -> None:
            stored = join_epochs(loader, recorded.take(epochs)) if form else None
            write_distilled(
                run.folder / FOLDER,
                config,
                images,
                torch.cat([piece["logits"] for piece in plain.take(numbers)]),
                source.classes,
                source.preprocessing,
                statistics=source.statistics(),
                extra={STORED: save_tensors(stored)} if stored else {},
            )

        run.once("distilled", write)
    run.sweep(PIECES)
    distilled = read_distilled(run.folder / FOLDER)
    return Labelled(distilled, label, form, distilled.stored)


def _form(config: Config, loader: Loader) -> Form:
    settings = config.relabel
    return choose_form(
        epochs=config.evaluation.training.epochs,
        top_k=settings.top_k,
        stored_epochs=settings.stored_epochs,
        budget_bytes=settings.budget_mb * 1e6 if settings.budget_mb else None,
        size_of=lambda form: stored_bytes(form, loader),
        num_classes=loader.task.num_classes,
    )
