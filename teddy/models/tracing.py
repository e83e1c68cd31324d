"""Networks as graphs: where each BatchNorm stands, and what comes after it that can be computed with it."""

import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

RELUS = frozenset({F.relu, torch.relu, "relu", "relu_"})
ADDITIONS = frozenset({operator.add, operator.iadd, torch.add, "add", "add_"})


@dataclass(frozen=True)
class Norm:
    """A BatchNorm in a traced network: its node, and those of the addition and the ReLU after it where they are."""

    path: str
    layer: nn.BatchNorm2d
    nodes: tuple[fx.Node, ...]

    @property
    def given(self) -> fx.Node:
        """What it is given now; rewriting another one may change that."""
        return self.nodes[0].args[0]  # type: ignore[return-value]

    @property
    def added(self) -> fx.Node | None:
        """What is added to its result."""
        parts = self.nodes[1].args if len(self.nodes) == 3 else ()
        return next((part for part in parts if part is not self.nodes[0]), None)  # type: ignore[return-value]

    @property
    def relu(self) -> bool:
        """Whether the result is clipped at 0."""
        return len(self.nodes) > 1

    def replace_by(self, result: fx.Node) -> None:
        """Let everything that used these nodes use `result`."""
        self.nodes[-1].replace_all_uses_with(result)
        for node in reversed(self.nodes):
            result.graph.erase_node(node)


class NormInPlace(nn.Module):
    """What stands in the place of such a BatchNorm: it has the same parameters and statistics under the same names."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self._parameters, self._buffers = norm.layer._parameters, norm.layer._buffers
        self.eps, self.momentum, self.relu = norm.layer.eps, norm.layer.momentum, norm.relu


def trace(network: nn.Module) -> fx.GraphModule | None:
    """The network as a graph over a copy of its modules; nothing if its code does not allow that."""
    try:
        return fx.symbolic_trace(network)
    except Exception:  # the network's own code is run on stand-ins, and may fail in any way
        return None


def called_once(traced: fx.GraphModule) -> dict[fx.Node, nn.Module]:
    """The modules that stand in one place of the network only, by their calls."""
    calls = [node for node in traced.graph.nodes if node.op == "call_module"]
    times = Counter(node.target for node in calls)
    return {node: traced.get_submodule(str(node.target)) for node in calls if times[node.target] == 1}


def find_norms(traced: fx.GraphModule) -> list[Norm]:
    """Every BatchNorm that has weights and statistics and stands in one place, in the order of the calls."""
    modules = dict(traced.named_modules())
    norms: list[Norm] = []
    for node, layer in called_once(traced).items():
        if not isinstance(layer, nn.BatchNorm2d) or layer.weight is None or layer.running_mean is None:
            continue
        taken = {other for norm in norms for other in norm.nodes}
        nodes: tuple[fx.Node, ...] = (node,)
        after = _only_user(node, taken)
        if after and _is_relu(after, modules):
            nodes = (node, after)
        elif after and _is_addition(after) and (then := _only_user(after, taken)) and _is_relu(then, modules):
            nodes = (node, after, then)
        norms.append(Norm(str(node.target), layer, nodes))
    return norms


def _only_user(node: fx.Node, taken: set[fx.Node]) -> fx.Node | None:
    user = next(iter(node.users)) if len(node.users) == 1 else None
    return None if user in taken else user


def _is_relu(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return type(modules[str(node.target)]) is nn.ReLU
    return node.target in RELUS


def _is_addition(node: fx.Node) -> bool:
    """Of two different things, both computed."""
    computed = {part for part in node.args if isinstance(part, fx.Node)}
    is_call = node.op in {"call_function", "call_method"} and node.target in ADDITIONS
    return is_call and len(computed) == len(node.args) == 2 and not node.kwargs
