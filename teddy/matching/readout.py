"""Eq. 1 where it can be solved: what a readout learns from the made images alone, and how wrong it is on real ones.

Proposition 2 supposes, as FRePo does, that only a last layer learns, and follows its gradient. All of such a layer's
training is known in closed form, as ridge regression. Here it reads what all layers make of an image, through a
Gaussian kernel, so that it need not be linear.

Shapes: G groups, B made and R real images in each, K classes, D features, C channels, H × W positions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from teddy.matching.statistics import GroupLabels

RIDGE = 0.01


def readout_error(
    made: Sequence[Tensor], labels: GroupLabels, real: Sequence[Tensor], real_labels: GroupLabels, ridge: float = RIDGE
) -> Tensor:
    """For each group [G] the squared error on the real images, summed over classes, of the readout that the made ones
    teach. Both are given as the features of each layer, [G · B, C, H, W] or [G · B, D]."""
    with torch.autocast(made[0].device.type, enabled=False):  # which would multiply in half precision
        pairs = [
            standardised(_by_group(ours, labels), _by_group(theirs, real_labels))
            for ours, theirs in zip(made, real, strict=True)
        ]
        images, images_real = (torch.cat(parts, dim=2) / len(pairs) ** 0.5 for parts in zip(*pairs, strict=True))
        kernel, kernel_real = gaussian_kernel(images, images), gaussian_kernel(images_real, images)
        predicted = ridge_predictions(kernel, kernel_real, class_codes(labels).to(kernel), ridge)
        return (predicted - class_codes(real_labels)).square().sum(2).mean(1)


def standardised(made: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Features [G, B, D] and [G, R, D] of which those of the real images have mean 0 and mean squared norm 1."""
    centre = real.mean(1, keepdim=True)
    scale = (real - centre).square().sum(2).mean(1).sqrt()[:, None, None].clamp(min=torch.finfo(real.dtype).tiny)
    return (made - centre) / scale, (real - centre) / scale


def gaussian_kernel(a: Tensor, b: Tensor) -> Tensor:
    """exp(−‖a_i − b_j‖² / 2) [G, A, B] of features [G, A, D] and [G, B, D]."""
    squared = a.square().sum(2)[:, :, None] + b.square().sum(2)[:, None, :] - 2 * a @ b.transpose(1, 2)
    return torch.exp(-squared.clamp(min=0) / 2)


def ridge_predictions(kernel: Tensor, kernel_real: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """k(X_t, X_s) (k(X_s, X_s) + λI)⁻¹ Y_s: [G, R, K] from kernels [G, B, B] and [G, R, B] and targets [G, B, K]."""
    identity = torch.eye(kernel.shape[1], dtype=kernel.dtype, device=kernel.device)
    return kernel_real @ torch.linalg.solve(kernel + ridge * identity, targets)


def class_codes(labels: GroupLabels) -> Tensor:
    """Which class of its group each image shows [G, B, K]: 1 − 1/K for its own, −1/K for the others."""
    num_classes = labels.classes.shape[1]
    return F.one_hot(labels.members, num_classes).float() - 1 / num_classes


def _by_group(features: Tensor, labels: GroupLabels) -> Tensor:
    exact = features.to(torch.promote_types(features.dtype, torch.float32))
    return exact.unflatten(0, labels.members.shape).flatten(2)
