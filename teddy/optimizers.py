"""What changes weights by their gradients: PyTorch's SGD and AdamW, and Muon for convolutions."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import overload

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from teddy.config import Optimizer
from teddy.models.several import each_of

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # of Muon's author: singular values go to 1 ± 0.3 in five rounds
ROUNDS = 5
LIKE_ADAM = 0.2  # the usual root mean square of an update of Adam's, so that its learning rates serve
BETAS, EPSILON = (0.9, 0.999), 1e-8


def make_optimizer(
    name: Optimizer,
    network: nn.Module,
    *,
    learning_rate: float,
    weight_decay: float,
    momentum: float,
) -> torch.optim.Optimizer:
    """SGD with momentum, AdamW with the usual betas, or Muon with momentum for what it is made for and AdamW else."""
    parameters = list(network.parameters())
    device = parameters[0].device
    gpu = device.type == "cuda"
    rate = torch.tensor(learning_rate, device=device) if gpu else learning_rate  # a captured step reads it anew
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=weight_decay, fused=gpu)
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=rate, betas=BETAS, weight_decay=weight_decay, fused=gpu, capturable=gpu)
    return Muon(network, lr=rate, momentum=momentum, weight_decay=weight_decay)


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal, so that all directions of a layer move alike.

    For the weights of hidden layers, a filter's pixels counted as inputs; the last layer, norms and biases are AdamW's.
    PyTorch's own takes matrices only, and no learning rate that a captured step could read.
    """

    def __init__(self, network: nn.Module, *, lr: float | Tensor, momentum: float, weight_decay: float) -> None:
        hidden = hidden_weights(network)
        known = {id(weight) for weight in hidden}
        others = [parameter for parameter in network.parameters() if id(parameter) not in known]
        groups = [{"params": hidden, "orthogonal": True}, {"params": others, "orthogonal": False}]
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__([group for group in groups if group["params"]], defaults)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Change every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters and group["orthogonal"]:
                self._step_orthogonally(parameters, group["lr"], group["momentum"], group["weight_decay"])
            elif parameters:
                self._step_as_adam(parameters, group["lr"], group["weight_decay"])
        return None

    def _step_orthogonally(
        self, weights: list[Tensor], rate: float | Tensor, momentum: float, weight_decay: float
    ) -> None:
        gradients, averaged = _gradients(weights), self._kept("momentum", weights)
        torch._foreach_mul_(averaged, momentum)
        torch._foreach_add_(averaged, gradients)
        ahead = torch._foreach_add(gradients, averaged, alpha=momentum)  # Nesterov's
        updates = orthogonalised(ahead)
        torch._foreach_mul_(updates, rate)
        torch._foreach_mul_(weights, 1 - rate * weight_decay)
        torch._foreach_sub_(weights, updates)

    def _step_as_adam(self, parameters: list[Tensor], rate: float | Tensor, weight_decay: float) -> None:
        first, second, steps = (self._kept(name, parameters) for name in ("first", "second", "step"))
        gpu = parameters[0].is_cuda
        adamw(
            parameters, _gradients(parameters), first, second, [], steps, fused=gpu, capturable=gpu, amsgrad=False,
            beta1=BETAS[0], beta2=BETAS[1], lr=rate, weight_decay=weight_decay, eps=EPSILON, maximize=False,
        )  # fmt: skip

    def _kept(self, name: str, parameters: Sequence[Tensor]) -> list[Tensor]:
        for each in parameters:
            if name not in self.state[each]:
                self.state[each][name] = each.new_zeros(()) if name == "step" else torch.zeros_like(each)
        return [self.state[each][name] for each in parameters]


def hidden_weights(network: nn.Module) -> list[Tensor]:
    """Weights of convolutions and linear layers but the last one's, of several networks those of each."""
    found: list[Tensor] = []
    for each in each_of(network):
        layers = [module for module in each.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
        found += [layer.weight for layer in layers[:-1]]
    return found


def orthogonalised(updates: Sequence[Tensor]) -> list[Tensor]:
    """Each as the nearest matrix with orthonormal rows or columns, roughly, of the size of an update of Adam's.

    Those with equally many rows (or columns, where these are fewer) go together, filled up with zeros that stay zeros:
    on a GPU the number of calls is what takes the time.
    """
    wide = [_lying(update.movedim(1, -1).flatten(1)) for update in updates]  # no copy where channels come last
    alike: dict[int, list[int]] = defaultdict(list)
    for number, matrix in enumerate(wide):
        alike[len(matrix)].append(number)
    results: dict[int, Tensor] = {}
    for rows, numbers in alike.items():
        widest = max(wide[number].shape[1] for number in numbers)
        together = wide[numbers[0]].new_zeros(len(numbers), rows, widest)
        for place, number in zip(together, numbers, strict=True):
            place[:, : wide[number].shape[1]].copy_(wide[number])
        for result, number in zip(newton_schulz(together), numbers, strict=True):
            (outputs, inputs, *pixels), columns = updates[number].shape, wide[number].shape[1]
            matrix = result[:, :columns] * (LIKE_ADAM * columns**0.5)
            matrix = matrix if len(matrix) == outputs else matrix.mT
            results[number] = matrix.unflatten(1, (*pixels, inputs)).movedim(-1, 1)
    return [results[number] for number in range(len(updates))]


def newton_schulz(matrices: Tensor) -> Tensor:
    """U Vᵀ of each matrix U S Vᵀ [N, R, C], R ≤ C, roughly: X ← a X + (b A + c A²) X with A = X Xᵀ, from X / ‖X‖.

    In bf16 on a GPU: what is left of the singular values' differences is more than its rounding.
    """
    a, b, c = NEWTON_SCHULZ
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    if x.is_cuda:
        x = x.bfloat16()
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)


def _lying(matrix: Tensor) -> Tensor:
    """On its side where it is taller than wide."""
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT


def _gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
