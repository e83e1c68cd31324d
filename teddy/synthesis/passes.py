"""Passes of groups of images through one teacher: the objective's terms, and its gradient in the images.

A teacher's weights are arguments of the pass, not part of it, so that one compilation serves every teacher.
Shapes: G groups, B images in each, C channels, H × W pixels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from teddy.engine import Engine, Frozen
from teddy.matching.statistics import GroupLabels
from teddy.models.recording import GroupRecorder, Recorded
from teddy.pool.pool import Teacher
from teddy.synthesis.real import Real


@dataclass(frozen=True)
class Slot:
    """A teacher as an objective sees it: `record` takes images and the number of their groups; and `real` images to
    compare with, where they are drawn."""

    record: Callable[[Tensor, int], Recorded]
    means: Sequence[Tensor]
    variances: Sequence[Tensor]
    class_means: Sequence[Tensor]
    real: Real | None = None


Objective = Callable[[Tensor, GroupLabels, Slot], dict[str, Tensor]]
"""Images [G · B, C, H, W], their labels and a teacher → weighted terms, each [G], whose sum is minimised."""


class Passed(NamedTuple):
    """What a pass leaves: the gradient [G · B, C, H, W] of the sum of all terms, and the terms [G]."""

    gradient: Tensor
    terms: dict[str, Tensor]


class Passes:
    """The passes of one objective, computed as the engine says."""

    def __init__(self, objective: Objective, engine: Engine) -> None:
        self._compute = Frozen(partial(_pass, objective, engine), engine, wrap=_recorder(engine), prefix="network.")

    def __call__(self, images: Tensor, labels: GroupLabels, teacher: Teacher, real: Real | None = None) -> Passed:
        """One teacher's terms for some groups, and their gradient."""
        images = images.detach().requires_grad_()
        statistics = (teacher.means, teacher.variances, teacher.class_means)
        total, terms = self._compute(teacher.network, *statistics, images, labels, real)
        (gradient,) = torch.autograd.grad(total, images)
        return Passed(gradient, terms)


def _recorder(engine: Engine) -> Callable[[nn.Module], nn.Module]:
    if not engine.fuses:
        return GroupRecorder
    from teddy.models.measured import group_recorder  # needs Triton, which is not everywhere

    return group_recorder


def _pass(
    objective: Objective,
    engine: Engine,
    recorder: nn.Module,
    weights: dict[str, Tensor],
    means: Sequence[Tensor],
    variances: Sequence[Tensor],
    class_means: Sequence[Tensor],
    images: Tensor,
    labels: GroupLabels,
    real: Real | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    with engine.autocast():
        slot = Slot(partial(_record, recorder, weights), means, variances, class_means, real)
        terms = objective(images, labels, slot)
    total = torch.stack(list(terms.values())).sum()
    return total, {name: values.detach() for name, values in terms.items()}


def _record(recorder: nn.Module, weights: dict[str, Tensor], images: Tensor, groups: int) -> Recorded:
    recorded: Recorded = functional_call(recorder, weights, (images, groups))
    return recorded
