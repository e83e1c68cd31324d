"""Teddy: statistics of weak teachers' features and an ensemble classifier prior (Eq. 6)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from teddy.config import MethodSettings
from teddy.matching.statistics import class_wise_distance, classifier_prior, forward_recording, statistics_distance
from teddy.methods.method import Method, noise_or_real
from teddy.models.layers import recorded_layers
from teddy.pool.pool import Teacher
from teddy.synthesis.engine import Objective


def teddy_objective(settings: MethodSettings) -> Objective:
    """Eq. 6 with the configured statistics and weights."""
    return weighted_objective(
        global_weight=settings.global_weight if settings.statistics != "class-wise" else 0.0,
        class_wise_weight=settings.class_wise_weight if settings.statistics != "global" else 0.0,
        every_layer=settings.class_wise_layers == "every",
        classifier_weight=settings.classifier_weight,
    )


def weighted_objective(
    *, global_weight: float, class_wise_weight: float, every_layer: bool, classifier_weight: float
) -> Objective:
    """The sum over teachers of weighted statistics and u · l(S; θ); terms without weight are not computed."""

    def objective(images: Tensor, labels: Tensor, teachers: Sequence[Teacher]) -> dict[str, Tensor]:
        terms: dict[str, list[Tensor]] = {}
        for teacher in teachers:
            layers = recorded_layers(teacher.network)
            logits, inputs = forward_recording(teacher.network, layers, images, lambda features: features)
            if global_weight:
                distances = [
                    statistics_distance(features, mean, variance)
                    for features, mean, variance in zip(inputs[:-1], teacher.means, teacher.variances, strict=True)
                ]
                terms.setdefault("global", []).append(global_weight * torch.stack(distances).sum())
            if class_wise_weight:
                matched = slice(None) if every_layer else slice(-1, None)
                distances = [
                    class_wise_distance(features, labels, means)
                    for features, means in zip(inputs[matched], teacher.class_means[matched], strict=True)
                ]
                terms.setdefault("class-wise", []).append(class_wise_weight * torch.stack(distances).sum())
            if classifier_weight:
                terms.setdefault("classifier", []).append(classifier_weight * classifier_prior(logits, labels))
        return {name: torch.stack(values).sum() for name, values in terms.items()}

    return objective


TEDDY = Method(
    "Taylor-approximated matching of weak teachers' statistics (the paper, Eq. 6)", noise_or_real, teddy_objective
)
