"""A readout's error against values worked out by hand, and against scikit-learn's kernel ridge regression."""

import math

import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from torch import Tensor

from teddy.matching.readout import class_codes, gaussian_kernel, readout_error, ridge_predictions, standardised
from teddy.matching.statistics import GroupLabels

CLASSES = torch.tensor([[0, 1, 2], [3, 4, 5]])
LABELS = GroupLabels(CLASSES, torch.tensor([[0, 1, 2, 0], [2, 1, 0, 0]]))
LABELS_OF_REAL = GroupLabels(CLASSES, torch.tensor([0, 0, 1, 1, 2, 2]).expand(2, -1))


def some_features(*, dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], list[Tensor]]:
    """Of two layers: maps of two groups of four made and six real images, and plain features."""
    generator = torch.Generator().manual_seed(0)
    made, real = (
        [torch.randn(count, 3, 2, 2, generator=generator), torch.randn(count, 5, generator=generator)]
        for count in (8, 12)
    )
    return [each.to(dtype) for each in made], [each.to(dtype) for each in real]


def test_the_error_by_hand():
    labels = GroupLabels(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]))
    features = torch.tensor([[1.0], [-1.0]])  # mean 0 and mean squared norm 1 already
    error = readout_error([features], labels, [features], labels, ridge=0.1)
    # The kernel is 1 and e⁻² (two apart), the codes ±½: predicted are they times (1 − e⁻²) / (1 + λ − e⁻²).
    short_of = 0.1 / (1 + 0.1 - math.exp(-2))
    assert error.tolist() == pytest.approx([2 * (0.5 * short_of) ** 2])


def test_predictions_are_those_of_kernel_ridge_regression():
    generator = torch.Generator().manual_seed(1)
    made, real = (torch.randn(1, count, 4, generator=generator, dtype=torch.float64) for count in (6, 9))
    targets = torch.randn(1, 6, 3, generator=generator, dtype=torch.float64)
    ours = ridge_predictions(gaussian_kernel(made, made), gaussian_kernel(real, made), targets, ridge=0.2)
    theirs = KernelRidge(alpha=0.2, kernel="rbf", gamma=0.5).fit(made[0].numpy(), targets[0].numpy())
    torch.testing.assert_close(ours[0], torch.from_numpy(theirs.predict(real[0].numpy())))


def test_codes_say_the_class_within_the_group():
    codes = class_codes(LABELS)
    assert codes.shape == (2, 4, 3)
    assert codes.argmax(2).tolist() == LABELS.members.tolist()
    torch.testing.assert_close(codes.sum(2), torch.zeros(2, 4))


def test_real_features_are_what_is_standardised():
    made, real = torch.randn(2, 4, 7), 3 * torch.randn(2, 50, 7) + 2
    ours, theirs = standardised(made, real)
    torch.testing.assert_close(theirs.mean(1), torch.zeros(2, 7), atol=1e-5, rtol=0)
    torch.testing.assert_close(theirs.square().sum(2).mean(1), torch.ones(2))
    ratio = (real[:, 0] - real[:, 1]).norm(dim=1) / (theirs[:, 0] - theirs[:, 1]).norm(dim=1)
    torch.testing.assert_close((ours[:, 0] - ours[:, 1]).norm(dim=1) * ratio, (made[:, 0] - made[:, 1]).norm(dim=1))


def test_features_that_do_not_vary_do_no_harm():
    made, real = some_features()
    error = readout_error([*made, torch.ones(8, 2)], LABELS, [*real, torch.ones(12, 2)], LABELS_OF_REAL)
    assert error.isfinite().all()


def test_every_group_has_a_readout_of_its_own():
    made, real = some_features()
    both = readout_error(made, LABELS, real, LABELS_OF_REAL)
    for group in range(2):
        own, own_real = ([each.chunk(2)[group] for each in features] for features in (made, real))
        labels = GroupLabels(*(each[[group]] for each in LABELS))
        labels_of_real = GroupLabels(*(each[[group]] for each in LABELS_OF_REAL))
        alone = readout_error(own, labels, own_real, labels_of_real)
        torch.testing.assert_close(both[[group]], alone)


def test_layers_count_alike_whatever_their_scale():
    made, real = some_features()
    larger, larger_real = ([each[0], 100 * each[1] + 7] for each in (made, real))
    torch.testing.assert_close(
        readout_error(made, LABELS, real, LABELS_OF_REAL),
        readout_error(larger, LABELS, larger_real, LABELS_OF_REAL),
        rtol=1e-3,
        atol=1e-5,
    )


def test_the_gradient_in_what_is_made():
    made, real = some_features(dtype=torch.float64)
    for each in made:
        each.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *given: readout_error(given, LABELS, real, LABELS_OF_REAL), tuple(made), atol=1e-6
    )


def test_half_precision_is_computed_in_single():
    made, real = some_features(dtype=torch.bfloat16)
    exact = readout_error([each.float() for each in made], LABELS, [each.float() for each in real], LABELS_OF_REAL)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(readout_error(made, LABELS, real, LABELS_OF_REAL), exact, rtol=0, atol=0)


def test_images_that_show_their_classes_teach_more_than_others():
    labels = GroupLabels(torch.tensor([[0, 1]]), torch.arange(20)[None] % 2)
    real = torch.randn(20, 6)
    real[:, 0] += 4.0 * labels.members[0]
    told, told_wrongly = (
        readout_error([real[rows]], GroupLabels(labels.classes, torch.tensor([[0, 0, 1, 1]])), [real], labels)
        for rows in ([0, 2, 1, 3], [0, 1, 2, 3])
    )
    assert told < 0.6 * told_wrongly
