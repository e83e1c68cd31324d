"""Statistics matching: the terms of Eq. 6, and the class means that Proposition 2 arrives at before it assumes balance.

Shapes: B images, C channels, H × W positions, D features, K classes.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from teddy.models.layers import channels_first

Kept = TypeVar("Kept")


class Statistics(NamedTuple):
    """Mean and biased variance [C] of `number` values a channel."""

    mean: Tensor
    variance: Tensor
    number: int


def forward_recording(
    network: nn.Module, layers: Sequence[nn.Module], images: Tensor, keep: Callable[[Tensor], Kept]
) -> tuple[Tensor, list[Kept]]:
    """The logits [B, K], and for each of `layers` what `keep` makes of the features [B, C, …] it was given."""
    kept: dict[nn.Module, Kept] = {}

    def record(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        kept[layer] = keep(channels_first(layer, given[0]))

    handles = [layer.register_forward_pre_hook(record) for layer in layers]
    try:
        logits = network(images)
    finally:
        for handle in handles:
            handle.remove()
    return logits, [kept[layer] for layer in layers]


def batch_statistics(features: Tensor) -> Statistics:
    """μ_l and σ²_l of Eq. 5: over images and positions of features [B, C, …]."""
    over = [dim for dim in range(features.dim()) if dim != 1]
    variance, mean = torch.var_mean(_exact(features), dim=over, correction=0)
    return Statistics(mean, variance, features.numel() // features.shape[1])


def merged(a: Statistics, b: Statistics) -> Statistics:
    """The statistics of both sets of values together, without the cancellation of E[x²] − E[x]²."""
    number = a.number + b.number
    share, apart = b.number / number, b.mean - a.mean
    variance = a.variance + share * (b.variance - a.variance) + share * (1 - share) * apart**2
    return Statistics(a.mean + share * apart, variance, number)


def statistics_distance(features: Tensor, real_mean: Tensor, real_variance: Tensor) -> Tensor:
    """One layer's share of Eq. 6: ‖μ_l − RM_l‖₂ + ‖σ²_l − RV_l‖₂, norms not squared."""
    mean, variance, _ = batch_statistics(features)
    return torch.linalg.vector_norm(mean - real_mean) + torch.linalg.vector_norm(variance - real_variance)


def pooled(features: Tensor) -> Tensor:
    """Features [B, D], averaged over positions where there are any."""
    return _exact(features).flatten(2).mean(2) if features.dim() > 2 else _exact(features)


def class_sums(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The columns of f(X)ᵀY in Eq. 4: sums [K, D] of features [B, D] by class, and the number of images in each [K]."""
    membership = F.one_hot(labels, num_classes).to(features.dtype)
    return membership.T @ features, membership.sum(0)


def class_wise_distance(features: Tensor, labels: Tensor, real_means: Tensor) -> Tensor:
    """Mean over the classes present of ‖μ_c(S) − μ_c(T)‖₂, the second term of Proposition 2 with each class counted
    alike; `real_means` is [K, D]."""
    sums, counts = class_sums(pooled(features), labels, len(real_means))
    present = counts > 0
    means = sums[present] / counts[present, None]
    return torch.linalg.vector_norm(means - real_means[present], dim=1).mean()


def classifier_prior(logits: Tensor, labels: Tensor) -> Tensor:
    """l(S; θ) of Eq. 6: cross-entropy of the images with the classes they are to show."""
    return F.cross_entropy(_exact(logits), labels)


def _exact(values: Tensor) -> Tensor:
    """In fp32 at least: sums over thousands of half-precision values are not to be trusted."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
