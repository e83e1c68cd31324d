"""What is measured on the real data once per teacher, in one pass that holds no more than a batch's activations.

Shapes: K classes, C channels of a layer, D features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from teddy.data.images import in_order
from teddy.data.source import Source
from teddy.matching.statistics import Statistics, batch_statistics, class_sums, merged, pooled
from teddy.models.layers import batch_norms, normalisation_layers
from teddy.models.recording import Recorder
from teddy.training import evaluating

BATCH = 500


@dataclass(frozen=True)
class Measured:
    """As `Teacher` has them; nothing of what was not asked for."""

    means: tuple[Tensor, ...] = ()
    variances: tuple[Tensor, ...] = ()
    class_means: tuple[Tensor, ...] = ()


def running_statistics(network: nn.Module) -> Measured:
    """What BatchNorm keeps of its own accord."""
    layers = batch_norms(network)
    return Measured(
        tuple(layer.running_mean for layer in layers),  # type: ignore[misc]
        tuple(layer.running_var for layer in layers),  # type: ignore[misc]
    )


@torch.no_grad()
def last_features(network: nn.Module, source: Source) -> Tensor:
    """The classifier's inputs [N, D] for all training images, on the CPU."""
    images, recorder = source.train.to(next(network.parameters()).device), Recorder(network, pooled)
    with evaluating(network):
        parts = [recorder(source.preprocessing.normalise(part.pixels))[1][-1].cpu() for part in in_order(images, BATCH)]
    recorder.remove()
    return torch.cat(parts)


@torch.no_grad()
def measure(network: nn.Module, source: Source, device: torch.device, *, class_means: bool) -> Measured:
    """The statistics of the inputs of normalisation layers that keep none, and the class means of every recorded layer.

    A layer's features are reduced as soon as they are there. What is held between batches is [C] and [K, D] per layer:
    21 MB for ResNet18 on ImageNet-1K.
    """
    norms, counted = normalisation_layers(network), not batch_norms(network)
    totals: list[Statistics] = []
    sums: list[Tensor] = []
    counts: Tensor | None = None
    if not counted and not class_means:
        return Measured()

    def reduce(features: Tensor) -> tuple[Tensor, Statistics | None]:
        return pooled(features), batch_statistics(features) if counted else None

    images, recorder = source.train.to(device), Recorder(network, reduce)
    with evaluating(network):
        for part in in_order(images, BATCH):
            _, reduced = recorder(source.preprocessing.normalise(part.pixels))
            if counted:
                batch = [statistics for _, statistics in reduced[: len(norms)] if statistics]
                totals = [merged(*pair) for pair in zip(totals, batch, strict=True)] if totals else batch
            if class_means:
                parts = [class_sums(features, part.labels, len(source.classes)) for features, _ in reduced]
                counts = parts[0][1] if counts is None else counts + parts[0][1]
                sums = [a + b for a, (b, _) in zip(sums, parts, strict=True)] if sums else [s for s, _ in parts]
    recorder.remove()
    return Measured(
        tuple(total.mean for total in totals),
        tuple(total.variance for total in totals),
        tuple(total / counts.clamp(min=1)[:, None] for total in sums) if counts is not None else (),
    )
