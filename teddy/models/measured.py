"""A frozen network rewritten so that its BatchNorms measure what they are given while they read it."""

import operator

from torch import Tensor, fx, nn

from teddy.kernels.measured_norm import measured_norm
from teddy.models.fast_layers import use_fast_layers
from teddy.models.layers import classifier, inner_convolutions, normalisation_layers
from teddy.models.recording import GroupRecorder, Recorded, Seen
from teddy.models.tracing import NormInPlace, find_norms, trace


def group_recorder(network: nn.Module) -> nn.Module:
    """A recorder of the rewritten network; the plain one if the network's code or layers do not allow that."""
    traced = trace(network)
    norms = find_norms(traced) if traced else []
    paths = {layer: path for path, layer in network.named_modules()}
    recorded = [paths[layer] for layer in normalisation_layers(network)]
    if traced is None or {norm.path for norm in norms} != set(recorded):
        return GroupRecorder(network)
    graph = traced.graph
    (last,) = (node for node in graph.nodes if node.target == paths[classifier(network)])
    (images,) = (node for node in graph.nodes if node.op == "placeholder")
    with graph.inserting_after(images):
        groups = graph.placeholder("groups")
    use_fast_layers(traced)
    seen = {}
    for norm in norms:
        traced.set_submodule(norm.path, MeasuredNorm(norm))
        with graph.inserting_before(norm.nodes[-1]):
            both = graph.call_module(norm.path, (norm.given, norm.added, groups))
            result, statistics = (graph.call_function(operator.getitem, (both, part)) for part in range(2))
        seen[norm.path] = (norm.given, statistics)
        norm.replace_by(result)
    (output,) = (node for node in graph.nodes if node.op == "output")
    inputs, measured = zip(*(seen[path] for path in recorded), strict=True)
    by_path = {node.target: node.args[0] for node in graph.nodes if node.op == "call_module"}
    maps = tuple(by_path[paths[convolution]] for convolution in inner_convolutions(network))
    output.args = ((output.args[0], (*inputs, last.args[0]), (*measured, None), maps),)
    traced.recompile()
    return MeasuredRecorder(traced)


class MeasuredRecorder(nn.Module):
    """Does what `GroupRecorder` does."""

    def __init__(self, network: fx.GraphModule) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, groups: int) -> Recorded:
        """What the network makes of them."""
        logits, inputs, statistics, maps = self.network(images, groups)
        layers = [Seen(given, groups, known) for given, known in zip(inputs, statistics, strict=True)]
        return Recorded(logits, layers, list(maps))


class MeasuredNorm(NormInPlace):
    """BatchNorm as it is in evaluation, and the addition and ReLU after it."""

    def forward(self, given: Tensor, added: Tensor | None, groups: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The result, and the mean and variance [G, C] of what was given."""
        known = (self.weight, self.bias, self.running_mean, self.running_var)
        result, mean, variance = measured_norm(given, added, *known, self.eps, self.relu, groups)
        return result, (mean, variance)
