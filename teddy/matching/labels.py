"""Ensemble soft labels (the last line of Algorithm 1), and the losses by which a student learns from labels.

Shapes: n teachers, B images, K classes.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F


def ensemble(logits: Tensor, average: Literal["logits", "probabilities"], temperature: float) -> Tensor:
    """One label [B, K], in logits, of teachers' logits [n, B, K].

    Averaged probabilities come back as the logits whose softmax at `temperature` they are, so that whoever uses labels
    need not know how they were averaged.
    """
    if average == "logits":
        return logits.mean(0)
    log_probabilities = F.log_softmax(logits / temperature, dim=2)
    return temperature * (torch.logsumexp(log_probabilities, dim=0) - torch.tensor(float(len(logits))).log())


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """With target probabilities [B, K], which mixing makes of hard labels."""
    return F.cross_entropy(logits.float(), targets)


def divergence(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """T² · KL(teacher ‖ student) at temperature T; the factor keeps the gradient's size independent of T."""
    student = F.log_softmax(logits.float() / temperature, dim=1)
    teacher = F.log_softmax(teacher_logits / temperature, dim=1)
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


def logit_error(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Mean squared distance of the logits."""
    return F.mse_loss(logits.float(), teacher_logits)
