"""What every teacher is trained on: real images with their own labels."""

from functools import partial

import torch
from torch import Tensor

from teddy.config import PoolSettings
from teddy.data.augment import draw_change
from teddy.data.loaders import Batch, Loader
from teddy.data.source import Source
from teddy.matching.labels import cross_entropy


def teacher_loader(
    settings: PoolSettings,
    source: Source,
    device: torch.device,
    *,
    seed: int,
    batch_size: int | None = None,
    rows: Tensor | None = None,
) -> Loader:
    """The training images, or those in `rows`, augmented as configured."""
    return Loader(
        source.train.to(device),
        source.preprocessing,
        source.task,
        batch_size=batch_size or settings.training.batch_size,
        seed=seed,
        change=partial(draw_change, **settings.training.augment.model_dump()),
        rows=rows,
    )


def teacher_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy with the true classes."""
    return cross_entropy(logits, batch.targets)
