"""Teddy: statistics of weak teachers' features and an ensemble classifier prior (Eq. 6)."""

from typing import NamedTuple

import torch
from torch import Tensor

from teddy.config import MethodSettings
from teddy.matching.readout import readout_error
from teddy.matching.statistics import (
    GroupLabels,
    class_means,
    class_variances,
    class_wise_distance,
    classifier_prior,
    pooled,
    statistics_distance,
)
from teddy.methods.method import Method, initial_images
from teddy.models.recording import Recorded
from teddy.synthesis.passes import Objective, Slot


def teddy_objective(settings: MethodSettings) -> Objective:
    """Eq. 6 with the configured statistics and weights."""
    by_class = settings.statistics != "global"
    return weighted_objective(
        global_weight=settings.global_weight if settings.statistics != "class-wise" else 0.0,
        class_wise_weight=settings.class_wise_weight if by_class else 0.0,
        every_layer=settings.class_wise_layers == "every",
        map_weight=settings.map_weight if by_class else 0.0,
        variance_weight=settings.variance_weight if by_class else 0.0,
        readout_weight=settings.readout_weight if by_class else 0.0,
        classifier_weight=settings.classifier_weight,
    )


def weighted_objective(
    *,
    global_weight: float,
    class_wise_weight: float,
    every_layer: bool,
    classifier_weight: float,
    map_weight: float = 0.0,
    variance_weight: float = 0.0,
    readout_weight: float = 0.0,
    first_layer: float = 1.0,
) -> Objective:
    """Weighted statistics and u · l(S; θ) of one teacher; terms without weight are not computed. The statistics of the
    first layer count `first_layer` times."""

    def objective(images: Tensor, labels: GroupLabels, teacher: Slot) -> dict[str, Tensor]:
        terms = {}
        made, real = teacher.record(images, len(labels.classes)), recorded_real(teacher, labels)
        if global_weight:
            distances = [
                statistics_distance(*layer.statistics(), mean, variance)
                for layer, mean, variance in zip(made.layers[:-1], teacher.means, teacher.variances, strict=True)
            ]
            distances[0] = first_layer * distances[0]
            terms["global"] = global_weight * torch.stack(distances).sum(0)
        if class_wise_weight:
            matched = slice(None) if every_layer else slice(-1, None)
            targets = real.means(matched) if real else [means[labels.classes] for means in teacher.class_means[matched]]
            distances = [
                class_wise_distance(class_means(pooled(layer.features), labels), means)
                for layer, means in zip(made.layers[matched], targets, strict=True)
            ]
            terms["class-wise"] = class_wise_weight * torch.stack(distances).sum(0)
        if real and map_weight:
            distances = [
                class_wise_distance(class_means(ours, labels), class_means(theirs, real.labels))
                for ours, theirs in zip(made.maps, real.recorded.maps, strict=True)
            ]
            terms["maps"] = map_weight * torch.stack(distances).sum(0)
        if real and variance_weight:
            ours, theirs = (
                class_variances(pooled(recorded.layers[-1].features), whose)
                for recorded, whose in ((made, labels), real)
            )
            terms["variances"] = variance_weight * class_wise_distance(ours, theirs)
        if real and readout_weight:
            read, read_real = ([*each.maps, each.layers[-1].features] for each in (made, real.recorded))
            terms["readout"] = readout_weight * readout_error(read, labels, read_real, real.labels)
        if classifier_weight:
            terms["classifier"] = classifier_weight * classifier_prior(made.logits, labels)
        return terms

    return objective


class RecordedReal(NamedTuple):
    """What a teacher makes of the real images that were drawn, and which classes these are of."""

    recorded: Recorded
    labels: GroupLabels

    def means(self, matched: slice) -> list[Tensor]:
        """Class means [G, k, D] of the features that the matched layers were given."""
        return [class_means(pooled(layer.features), self.labels) for layer in self.recorded.layers[matched]]


def recorded_real(teacher: Slot, labels: GroupLabels) -> RecordedReal | None:
    """Of the images drawn for these groups, where there are any."""
    if teacher.real is None:
        return None
    with torch.no_grad():
        return RecordedReal(teacher.record(teacher.real.images, len(labels.classes)), teacher.real.labels)


TEDDY = Method(
    "Taylor-approximated matching of weak teachers' statistics (the paper, Eq. 6)", initial_images, teddy_objective
)
