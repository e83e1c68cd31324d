"""Ensemble soft labels: online from the pool for augmented images, and stored for the images as they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from teddy.config import Config
from teddy.data.source import Images, Source
from teddy.distilled import DistilledSet, read_distilled, write_distilled
from teddy.matching.labels import ensemble
from teddy.pool.pool import Pool
from teddy.run import Run

FOLDER = "distilled"
LABELLING_BATCH = 500
Labeller = Callable[[Tensor], Tensor]
"""Normalised images [B, C, H, W] → soft labels [B, K], in logits."""


@dataclass(frozen=True)
class Labelled:
    """The distilled set, and the ensemble that labels whatever is made of its images."""

    distilled: DistilledSet
    label: Labeller


def make_labeller(
    networks: Sequence[nn.Module], average: Literal["logits", "probabilities"], temperature: float
) -> Labeller:
    """Y = 1/|M| Σ h(A(X); θ), the last line of Algorithm 1."""

    @torch.no_grad()
    def label(images: Tensor) -> Tensor:
        return ensemble(torch.stack([network(images) for network in networks]), average, temperature)

    return label


def relabel(config: Config, images: Images, pool: Pool, source: Source, run: Run) -> Labelled:
    """The distilled set of this run: labelled and left in its folder, if it is not there yet, and read."""
    settings = config.relabel
    teachers = pool.teachers if settings.teachers == "all" else pool.spread(settings.teachers)
    label = make_labeller([teacher.network for teacher in teachers], settings.average, settings.temperature)
    if not run.has(FOLDER):
        batches = images.pixels.split(LABELLING_BATCH)
        with run.stage("relabel", f"labels of {len(teachers)} teachers", len(batches)) as stage:
            logits = []
            for pixels in batches:
                logits.append(label(source.preprocessing.normalise(pixels.to(run.device))).cpu())
                stage.step()
        write_distilled(run.folder / FOLDER, config, images, torch.cat(logits), source.classes, source.preprocessing)
    return Labelled(read_distilled(run.folder / FOLDER), label)
