"""Eq. 6 and Proposition 2 against values worked out by hand and against naive loops."""

import math

import pytest
import torch
from torch import Tensor, nn

from teddy.matching.statistics import (
    GroupLabels,
    batch_statistics,
    class_means,
    class_sums,
    class_variances,
    class_wise_distance,
    classifier_prior,
    group_statistics,
    merged,
    pooled,
    statistics_distance,
)


def one_group(labels: list[int]) -> GroupLabels:
    classes, members = torch.tensor(labels).unique(return_inverse=True)
    return GroupLabels(classes[None], members[None])


def test_batch_statistics_by_hand():
    # Two images, two channels, one row of two pixels.
    features = torch.tensor([[[[1.0, 3.0]], [[0.0, 0.0]]], [[[5.0, 7.0]], [[4.0, 0.0]]]])
    mean, variance, _ = batch_statistics(features)
    assert mean.tolist() == [4.0, 1.0]
    assert variance.tolist() == [5.0, 3.0]  # (9+1+1+9)/4 and (1+1+9+1)/4: biased


def test_batch_statistics_are_what_batchnorm_normalises_with():
    features = torch.randn(6, 3, 5, 4) * 3 + 1
    layer = nn.BatchNorm2d(3, affine=False, eps=1e-12)
    mean, variance, _ = batch_statistics(features)
    expected = (features - mean[:, None, None]) / variance[:, None, None].sqrt()
    torch.testing.assert_close(layer(features), expected)


def test_half_precision_is_summed_in_single():
    features = torch.full((64, 1, 64, 64), 1.0, dtype=torch.bfloat16)
    features[0] = 1.5
    mean, variance, _ = batch_statistics(features)
    assert mean.dtype == torch.float32
    assert mean.item() == pytest.approx(1 + 0.5 / 64, rel=1e-6)
    assert variance.item() == pytest.approx(0.25 * (1 / 64) * (63 / 64), rel=1e-4)


def test_merged_statistics_are_those_of_everything_at_once():
    # Far from zero, where E[x²] − E[x]² would have lost all digits.
    features = torch.randn(30, 4, 3, 3) + 3000
    total = batch_statistics(features[:4])
    for part in (features[4:5], features[5:]):
        total = merged(total, batch_statistics(part))
    whole = batch_statistics(features)
    assert total.number == whole.number == 30 * 9
    torch.testing.assert_close(total.mean, whole.mean)
    torch.testing.assert_close(total.variance, whole.variance, rtol=1e-3, atol=0)


def distance_of(features: Tensor, mean: Tensor, variance: Tensor, groups: int = 1) -> Tensor:
    return statistics_distance(*group_statistics(features, groups), mean, variance)


def test_statistics_distance_by_hand():
    features = torch.tensor([[[[1.0, 3.0]], [[0.0, 0.0]]], [[[5.0, 7.0]], [[4.0, 0.0]]]])
    # means (4, 1) against (1, −3): √(9+16) = 5; variances (5, 3) against (5, 1): 2. The norms are not squared.
    distance = distance_of(features, torch.tensor([1.0, -3.0]), torch.tensor([5.0, 1.0]))
    assert distance.item() == 7.0


def test_statistics_distance_has_the_analytic_gradient():
    features = torch.randn(3, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    real_mean, real_variance = torch.randn(2, dtype=torch.float64), torch.rand(2, dtype=torch.float64)
    distance_of(features, real_mean, real_variance).sum().backward()
    count = 3 * 2 * 2
    mean = features.detach().mean((0, 2, 3))
    variance = features.detach().var((0, 2, 3), correction=0)
    # ∂‖μ−RM‖/∂x = (μ−RM)/‖μ−RM‖ · 1/n ; ∂‖σ²−RV‖/∂x = (σ²−RV)/‖σ²−RV‖ · 2(x−μ)/n
    along_mean = (mean - real_mean) / (mean - real_mean).norm() / count
    along_variance = (variance - real_variance) / (variance - real_variance).norm() * 2 / count
    expected = along_mean[:, None, None] + along_variance[:, None, None] * (features.detach() - mean[:, None, None])
    torch.testing.assert_close(features.grad, expected)


def test_gradients_agree_with_finite_differences():
    features = torch.randn(4, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    labels = one_group([0, 1, 1, 0])
    real_means = torch.randn(1, 2, 3, dtype=torch.float64)
    mean, variance = torch.randn(3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda f: distance_of(f, mean, variance), features)
    assert torch.autograd.gradcheck(lambda f: class_wise_distance(class_means(pooled(f), labels), real_means), features)


def test_class_sums_by_naive_loops():
    features, labels = torch.randn(7, 5), torch.tensor([2, 0, 0, 3, 2, 2, 0])
    sums, counts = class_sums(features, labels, 4)
    for label in range(4):
        expected = torch.zeros(5)
        for row in range(7):
            if labels[row] == label:
                expected += features[row]
        torch.testing.assert_close(sums[label], expected)
    assert counts.tolist() == [3, 0, 3, 1]


def test_class_wise_distance_by_hand_leaves_absent_classes_out():
    features = torch.tensor([[1.0, 1.0], [3.0, 1.0], [0.0, 0.0]])
    labels = one_group([0, 0, 2])
    real_means = torch.tensor([[2.0, 4.0], [100.0, 100.0], [0.0, 1.0]])
    # class 0: (2, 1) against (2, 4) is 3; class 2: (0, 0) against (0, 1) is 1; class 1 has no image.
    assert class_wise_distance(class_means(features, labels), real_means[labels.classes]).item() == 2.0


def test_class_means_and_variances_by_naive_loops():
    features = torch.randn(2 * 4, 3, 2, 2)
    labels = GroupLabels(torch.tensor([[4, 1], [0, 2]]), torch.tensor([[0, 1, 1, 1], [1, 0, 1, 0]]))
    means, variances = class_means(features, labels), class_variances(features, labels)
    assert means.shape == variances.shape == (2, 2, 3, 2, 2)
    for group in range(2):
        for place in range(2):
            own = [features[4 * group + row] for row in range(4) if labels.members[group, row] == place]
            torch.testing.assert_close(means[group, place], sum(own) / len(own))
            deviations = [(each - means[group, place]) ** 2 for each in own]
            torch.testing.assert_close(variances[group, place], sum(deviations) / len(own))
    assert pooled(features).shape == (8, 3)
    torch.testing.assert_close(class_means(pooled(features), labels), means.mean((3, 4)))


def test_class_means_are_taken_in_single_precision_under_autocast():
    features, labels = torch.randn(8, 5) + 100, one_group([0, 0, 1, 1, 0, 0, 1, 1])
    expected = class_means(features, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(class_means(features, labels), expected)


def test_classifier_prior_by_hand():
    logits = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]])
    # probabilities 3/4 of the first's class, 1/2 of the second's
    assert classifier_prior(logits, one_group([1, 0])).item() == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)


def test_groups_have_distances_of_their_own():
    features = torch.randn(3 * 4, 5, 2, 2)
    mean, variance, real_means = torch.randn(5), torch.rand(5), torch.randn(7, 5)
    classes = torch.tensor([[0, 3], [6, 1], [2, 5]])
    labels = GroupLabels(classes, torch.tensor([[0, 1, 1, 0], [0, 0, 1, 0], [1, 1, 1, 0]]))
    assert labels.labels.tolist() == [0, 3, 3, 0, 6, 6, 1, 6, 5, 5, 5, 2]
    logits = torch.randn(12, 7)
    distances = distance_of(features, mean, variance, 3)
    pooled_means = class_means(pooled(features), labels)
    class_distances = class_wise_distance(pooled_means, real_means[labels.classes])
    priors = classifier_prior(logits, labels)
    assert distances.shape == class_distances.shape == priors.shape == (3,)
    for group in range(3):
        rows = slice(4 * group, 4 * group + 4)
        own = GroupLabels(labels.classes[[group]], labels.members[[group]])
        torch.testing.assert_close(distances[[group]], distance_of(features[rows], mean, variance))
        own_means = class_means(pooled(features[rows]), own)
        own_distance = class_wise_distance(own_means, real_means[own.classes])
        torch.testing.assert_close(class_distances[[group]], own_distance)
        torch.testing.assert_close(priors[[group]], classifier_prior(logits[rows], own))
