"""What every teacher is trained on: real images with their own labels."""

from functools import partial

import torch
from torch import Tensor

from teddy.config import PoolSettings
from teddy.data.augment import draw_change
from teddy.data.images import Images
from teddy.data.loaders import Batch, Loader
from teddy.data.source import Source
from teddy.engine import Engine
from teddy.matching.labels import cross_entropy

SAMPLE = 2000


def teacher_loader(
    settings: PoolSettings,
    source: Source,
    engine: Engine,
    *,
    seed: int,
    batch_size: int | None = None,
    part: tuple[int, int] = (0, 1),
) -> Loader:
    """The training images, augmented as configured."""
    return Loader(
        source.train.to(engine.device),
        source.preprocessing,
        source.task,
        batch_size=batch_size or settings.training.batch_size,
        seed=seed,
        change=partial(draw_change, **settings.training.augment.model_dump()),
        even=engine.compiles,
        part=part,
    )


def training_sample(source: Source, device: torch.device) -> Images:
    """Training images, the same at any time, on which networks are compared where no test image may have a say."""
    rows = torch.randperm(len(source.train), generator=torch.Generator().manual_seed(0))[:SAMPLE]
    return source.train.take(rows).to(device)


def teacher_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy with the true classes."""
    return cross_entropy(logits, batch.targets)
