"""Muon makes a hidden layer's update orthogonal, and leaves the rest to AdamW."""

import copy

import pytest
import torch
from torch import Tensor, nn

from teddy.data.source import Task
from teddy.models.several import as_one
from teddy.models.zoo import build_network
from teddy.optimizers import hidden_weights, make_optimizer, newton_schulz, orthogonalised

TASK = Task(3, 1, 16)
RATE, DECAY, MOMENTUM = 0.01, 0.1, 0.9


def decomposed(rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """U, S, Vᵀ with singular values between 0.1 and 1, in no small matrix of noise."""
    u, _, vt = torch.linalg.svd(torch.randn(rows, columns), full_matrices=False)
    return u, torch.linspace(1, 0.1, min(rows, columns)), vt


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (8, 30), (1, 9)])
def test_singular_values_become_one_and_their_vectors_stay(rows: int, columns: int):
    torch.manual_seed(0)
    u, s, vt = decomposed(rows, columns)
    found = u.T @ newton_schulz((u * s @ vt)[None])[0] @ vt.T
    assert (found.diagonal() - 1).abs().max() < 0.35
    torch.testing.assert_close(found, torch.diag(found.diagonal()), rtol=0, atol=1e-4)


def test_what_an_update_becomes_depends_neither_on_its_size_nor_on_those_beside_it():
    torch.manual_seed(0)
    shapes = [(8, 4, 3, 3), (8, 4, 3, 3), (8, 3, 5, 5), (20, 8), (6, 5), (6, 6)]  # the first four go together
    updates = [torch.randn(shape) for shape in shapes]
    together = orthogonalised(updates)
    for update, result in zip(updates, together, strict=True):
        assert result.shape == update.shape
        torch.testing.assert_close(orthogonalised([1000 * update])[0], result)
        torch.testing.assert_close(
            orthogonalised([update.to(memory_format=torch.channels_last) if update.dim() == 4 else update])[0], result
        )
        assert 0.1 < result.square().mean().sqrt() < 0.25  # as large as Adam's


def test_hidden_layers_are_those_before_the_classifier():
    network = build_network("convnet-d2-w16-bn", TASK)
    hidden = [
        name for name, value in network.named_parameters() if any(value is each for each in hidden_weights(network))
    ]
    assert hidden == ["features.0.weight", "features.4.weight"]
    assert len(hidden_weights(as_one([copy.deepcopy(network) for _ in range(3)]))) == 6


def test_muon_follows_its_formula_and_adamw_does_the_rest():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    by_adam = copy.deepcopy(network)
    given = {"learning_rate": RATE, "weight_decay": DECAY, "momentum": MOMENTUM}
    muon, adam = make_optimizer("muon", network, **given), make_optimizer("adamw", by_adam, **given)
    weight, velocity = network[0].weight.detach().clone(), torch.zeros(4, 6)
    for _ in range(4):
        for parameter, other in zip(network.parameters(), by_adam.parameters(), strict=True):
            parameter.grad = torch.randn_like(parameter)
            other.grad = parameter.grad.clone()
        gradient = network[0].weight.grad
        velocity = MOMENTUM * velocity + gradient
        (update,) = newton_schulz((gradient + MOMENTUM * velocity)[None])
        weight = (1 - RATE * DECAY) * weight - RATE * 0.2 * 6**0.5 * update
        muon.step()
        adam.step()
    torch.testing.assert_close(network[0].weight, weight)
    for index, name in ((0, "bias"), (2, "weight"), (2, "bias")):
        torch.testing.assert_close(getattr(network[index], name), getattr(by_adam[index], name))


def test_a_layer_whose_gradient_is_lopsided_still_moves_in_all_directions():
    """What it is for: SGD and Adam follow the largest direction, Muon follows all."""
    torch.manual_seed(0)
    u, _, vt = decomposed(8, 8)
    gradient = u * torch.logspace(0, -1.5, 8) @ vt
    moved = {}
    for name in ("sgd", "adamw", "muon"):
        network = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 2))
        before = network[0].weight.detach().clone()
        network[0].weight.grad = gradient.clone()
        make_optimizer(name, network, learning_rate=RATE, weight_decay=0, momentum=0).step()
        values = torch.linalg.svdvals(network[0].weight.detach() - before)
        moved[name] = float(values.min() / values.max())
    assert moved["muon"] > 0.5 > 5 * max(moved["sgd"], moved["adamw"])
