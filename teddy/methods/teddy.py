"""Teddy: statistics of weak teachers' features and an ensemble classifier prior (Eq. 6)."""

import torch
from torch import Tensor

from teddy.config import MethodSettings
from teddy.matching.statistics import (
    GroupLabels,
    class_means,
    class_wise_distance,
    classifier_prior,
    pooled,
    statistics_distance,
)
from teddy.methods.method import Method, initial_images
from teddy.synthesis.passes import Objective, Slot


def teddy_objective(settings: MethodSettings) -> Objective:
    """Eq. 6 with the configured statistics and weights."""
    return weighted_objective(
        global_weight=settings.global_weight if settings.statistics != "class-wise" else 0.0,
        class_wise_weight=settings.class_wise_weight if settings.statistics != "global" else 0.0,
        every_layer=settings.class_wise_layers == "every",
        classifier_weight=settings.classifier_weight,
    )


def weighted_objective(
    *,
    global_weight: float,
    class_wise_weight: float,
    every_layer: bool,
    classifier_weight: float,
    first_layer: float = 1.0,
) -> Objective:
    """Weighted statistics and u · l(S; θ) of one teacher; terms without weight are not computed. The statistics of the
    first layer count `first_layer` times."""

    def objective(images: Tensor, labels: GroupLabels, teacher: Slot) -> dict[str, Tensor]:
        terms = {}
        logits, layers = teacher.record(images, len(labels.classes))
        if global_weight:
            distances = [
                statistics_distance(*layer.statistics(), mean, variance)
                for layer, mean, variance in zip(layers[:-1], teacher.means, teacher.variances, strict=True)
            ]
            distances[0] = first_layer * distances[0]
            terms["global"] = global_weight * torch.stack(distances).sum(0)
        if class_wise_weight:
            matched = slice(None) if every_layer else slice(-1, None)
            distances = [
                class_wise_distance(class_means(pooled(layer.features), labels), means)
                for layer, means in zip(layers[matched], real_class_means(teacher, labels, matched), strict=True)
            ]
            terms["class-wise"] = class_wise_weight * torch.stack(distances).sum(0)
        if classifier_weight:
            terms["classifier"] = classifier_weight * classifier_prior(logits, labels)
        return terms

    return objective


def real_class_means(teacher: Slot, labels: GroupLabels, matched: slice) -> list[Tensor]:
    """Those [G, k, D] of the matched layers on real images: the ones that were drawn, else all, as measured."""
    if teacher.real is None:
        return [means[labels.classes] for means in teacher.class_means[matched]]
    images, real_labels = teacher.real
    with torch.no_grad():
        _, layers = teacher.record(images, len(labels.classes))
        return [class_means(pooled(layer.features), real_labels) for layer in layers[matched]]


TEDDY = Method(
    "Taylor-approximated matching of weak teachers' statistics (the paper, Eq. 6)", initial_images, teddy_objective
)
