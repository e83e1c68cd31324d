"""Statistics matching: the terms of Eq. 6, and the class means that Proposition 2 arrives at before it assumes balance.

Images that share their statistics are a group; several groups of one size lie one after the other, and each has a
distance of its own.

Shapes: G groups, B images in each, C channels, H × W positions, D features, K classes, k of them in a group.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class GroupLabels(NamedTuple):
    """What images show: the `classes` [G, k] of each group, and which of them each image is: `members` [G, B]."""

    classes: Tensor
    members: Tensor

    @property
    def labels(self) -> Tensor:
        """The class of each image [G · B]."""
        return self.classes.gather(1, self.members).flatten()


class Statistics(NamedTuple):
    """Mean and biased variance [C] of `number` values a channel."""

    mean: Tensor
    variance: Tensor
    number: int


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


def group_statistics(features: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """The same in each group [G, C] of features [G · B, C, …]."""
    by_group = _exact(features).unflatten(0, (groups, -1))
    over = [dim for dim in range(by_group.dim()) if dim not in {0, 2}]
    variance, mean = torch.var_mean(by_group, dim=over, correction=0)
    return mean, variance


def statistics_distance(mean: Tensor, variance: Tensor, real_mean: Tensor, real_variance: Tensor) -> Tensor:
    """One layer's share of Eq. 6 for each group [G]: ‖μ_l − RM_l‖₂ + ‖σ²_l − RV_l‖₂, norms not squared."""
    gap = torch.linalg.vector_norm(mean - real_mean, dim=1)
    return gap + torch.linalg.vector_norm(variance - real_variance, dim=1)


def pooled(features: Tensor) -> Tensor:
    """Features [B, D], averaged over positions where there are any."""
    return _exact(features).flatten(2).mean(2) if features.dim() > 2 else _exact(features)


def class_sums(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The columns of f(X)ᵀY in Eq. 4: sums [K, D] of features [B, D] by class, and the number of images in each [K]."""
    membership = F.one_hot(labels, num_classes).to(features.dtype)
    return membership.T @ features, membership.sum(0)


def class_means(features: Tensor, labels: GroupLabels) -> Tensor:
    """Means [G, k, D, …] of features [G · B, D, …] over the images of each class of a group."""
    by_group = _exact(features).unflatten(0, labels.members.shape)
    membership = F.one_hot(labels.members, labels.classes.shape[1]).to(by_group.dtype)
    with torch.autocast(features.device.type, enabled=False):  # which would multiply in half precision
        means = membership.transpose(1, 2) @ by_group.flatten(2) / membership.sum(1)[:, :, None]
    return means.unflatten(2, features.shape[1:])


def class_variances(features: Tensor, labels: GroupLabels) -> Tensor:
    """Biased variances [G, k, D, …] of the same."""
    means = class_means(features, labels)
    own = means[torch.arange(len(means), device=means.device)[:, None], labels.members].flatten(0, 1)
    return class_means((_exact(features) - own) ** 2, labels)


def class_wise_distance(means: Tensor, real_means: Tensor) -> Tensor:
    """For each group [G] the mean over its classes of ‖μ_c(S) − μ_c(T)‖₂, the second term of Proposition 2 with each
    class counted alike; both are [G, k, D, …]."""
    return torch.linalg.vector_norm((means - real_means).flatten(2), dim=2).mean(1)


def classifier_prior(logits: Tensor, labels: GroupLabels) -> Tensor:
    """l(S; θ) of Eq. 6 for each group [G]: cross-entropy of the images with the classes they are to show."""
    each = F.cross_entropy(_exact(logits), labels.labels, reduction="none")
    return each.unflatten(0, labels.members.shape).mean(1)


def _exact(values: Tensor) -> Tensor:
    """In fp32 at least: sums over thousands of half-precision values are not to be trusted."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
