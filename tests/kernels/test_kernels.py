"""Kernels against the plain operations that they stand for; without a GPU Triton's interpreter runs them."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from teddy.matching.statistics import group_statistics

pytest.importorskip("triton")

from teddy.kernels.max_pool import max_pool
from teddy.kernels.measured_norm import measured_norm
from teddy.kernels.trained_norm import trained_norm

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GROUPS, SIZE, EPS = 3, 4, 1e-5


def features(*shape: int) -> Tensor:
    values = torch.randn(shape, device=DEVICE).to(memory_format=torch.channels_last)
    return values.requires_grad_()


def gradients(results: list[Tensor], given: list[Tensor]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(part.shape, generator=generator).to(DEVICE) for part in results]
    return torch.autograd.grad(results, given, weights)


@pytest.mark.parametrize("channels", [3, 64, 70, 130])
@pytest.mark.parametrize("relu", [True, False], ids=["relu", "plain"])
@pytest.mark.parametrize("addition", [True, False], ids=["addition", "alone"])
@pytest.mark.parametrize("positions", [(3, 5), (20, 20)])
def test_measured_norm_is_batch_norm_and_statistics(
    channels: int, relu: bool, addition: bool, positions: tuple[int, int]
):
    torch.manual_seed(0)
    shape = (GROUPS * SIZE, channels, *positions)
    given, added = features(*shape), features(*shape) if addition else None
    weight, bias, mean, variance = (torch.rand(channels, device=DEVICE) + offset for offset in (0.5, -0.5, -0.5, 0.5))
    results = list(measured_norm(given, added, weight, bias, mean, variance, EPS, relu, GROUPS))
    plain = F.batch_norm(given, mean, variance, weight, bias, eps=EPS)
    plain = plain if added is None else plain + added
    expected = [plain.relu() if relu else plain, *group_statistics(given, GROUPS)]
    inputs = [given] if added is None else [given, added]
    for ours, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(gradients(results, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_measured_norm_takes_any_layout():
    given = torch.randn(6, 8, 5, 5, device=DEVICE)[:, ::2]  # neither dense nor channels last
    known = [torch.rand(4, device=DEVICE) + 0.5 for _ in range(4)]
    result, mean, _ = measured_norm(given, None, *known, EPS, False, 2)
    weight, bias, centre, spread = known
    torch.testing.assert_close(result, F.batch_norm(given, centre, spread, weight, bias, eps=EPS), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mean, group_statistics(given, 2)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels", [3, 64, 70, 130])
@pytest.mark.parametrize("relu", [True, False], ids=["relu", "plain"])
@pytest.mark.parametrize("addition", [True, False], ids=["addition", "alone"])
@pytest.mark.parametrize("positions", [(3, 5), (20, 20)])
def test_trained_norm_is_batch_norm_of_the_batch(channels: int, relu: bool, addition: bool, positions: tuple[int, int]):
    torch.manual_seed(0)
    shape = (SIZE, channels, *positions)
    given, added = features(*shape), features(*shape) if addition else None
    weight, bias = ((torch.rand(channels, device=DEVICE) + offset).requires_grad_() for offset in (0.5, -0.5))
    centre = torch.rand(channels, device=DEVICE) - 0.5
    result, mean, variance = trained_norm(given, added, weight, bias, centre, EPS, relu)
    plain = F.batch_norm(given, None, None, weight, bias, training=True, eps=EPS)
    plain = plain if added is None else plain + added
    expected = plain.relu() if relu else plain
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip((mean, variance), group_statistics(given, 1), strict=True):
        torch.testing.assert_close(ours, theirs[0], rtol=1e-4, atol=1e-5)
    inputs = [given, weight, bias, *([] if added is None else [added])]
    for ours, theirs in zip(gradients([result], inputs), gradients([expected], inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1), (3, 3, 0), (5, 2, 2)])
def test_max_pool_and_its_gradient(kernel: int, stride: int, padding: int):
    torch.manual_seed(0)
    given = features(2, 5, 12, 9)
    ours, theirs = max_pool(given, kernel, stride, padding), F.max_pool2d(given, kernel, stride, padding)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    torch.testing.assert_close(gradients([ours], [given]), gradients([theirs], [given]))
