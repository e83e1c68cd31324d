"""Soft labels and losses against naive sums."""

import math

import pytest
import torch

from teddy.matching.labels import cross_entropy, divergence, ensemble, logit_error


def test_ensemble_of_logits_is_their_mean():
    logits = torch.tensor([[[1.0, 3.0]], [[5.0, -1.0]]])
    assert ensemble(logits, "logits", 20.0).tolist() == [[3.0, 1.0]]


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_ensemble_of_probabilities_gives_them_back_at_its_temperature(temperature: float):
    logits = torch.randn(3, 5, 4)
    expected = torch.zeros(5, 4)
    for teacher in logits:
        for row in range(5):
            scaled = [math.exp(value / temperature) for value in teacher[row].tolist()]
            expected[row] += torch.tensor([value / sum(scaled) for value in scaled]) / 3
    label = ensemble(logits, "probabilities", temperature)
    torch.testing.assert_close((label / temperature).softmax(1), expected)


def test_the_two_averages_differ_where_teachers_do():
    logits = torch.tensor([[[0.0, 8.0]], [[2.0, 0.0]]])
    by_logits = ensemble(logits, "logits", 1.0).softmax(1)
    by_probabilities = ensemble(logits, "probabilities", 1.0).softmax(1)
    assert (by_logits - by_probabilities).abs().max() > 0.3


def test_cross_entropy_takes_mixed_targets():
    logits = torch.tensor([[0.0, math.log(3.0)]])
    expected = -(0.25 * math.log(1 / 4) + 0.75 * math.log(3 / 4))
    assert cross_entropy(logits, torch.tensor([[0.25, 0.75]])).item() == pytest.approx(expected)


@pytest.mark.parametrize("temperature", [1.0, 20.0])
def test_divergence_by_naive_sums(temperature: float):
    student, teacher = torch.randn(4, 3), torch.randn(4, 3)
    total = 0.0
    for row in range(4):
        p = [math.exp(value / temperature) for value in teacher[row].tolist()]
        q = [math.exp(value / temperature) for value in student[row].tolist()]
        p, q = [value / sum(p) for value in p], [value / sum(q) for value in q]
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert divergence(student, teacher, temperature).item() == pytest.approx(temperature**2 * total / 4, rel=1e-3)


def test_divergence_is_zero_for_the_teacher_itself_and_blind_to_a_shift():
    teacher = torch.randn(4, 3)
    assert divergence(teacher + 7, teacher, 4.0).item() == pytest.approx(0, abs=1e-5)


def test_logit_error_by_hand():
    assert logit_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 4.0]])).item() == 2.5
