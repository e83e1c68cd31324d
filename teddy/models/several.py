"""Networks of one kind that are trained at the same time, each on its own part of every batch."""

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from teddy.data.source import Task
from teddy.engine import Engine, side_by_side
from teddy.models.zoo import build_network, example_images

Forward = Callable[[Tensor], Tensor]


class Several(nn.Module):
    """Networks as one, which has all their parameters and buffers: what works on each value by itself, as optimizers
    and averages do, does with it what it would do with each of them."""

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, images: Tensor) -> Tensor:
        """What each makes of its part of the images, one after the other."""
        return torch.cat([network(part) for network, part in zip(self.networks, self._parts(images), strict=True)])

    def prepared(self, engine: Engine, fit: Callable[[nn.Module], nn.Module]) -> Forward:
        """The same side by side, compiled once for all of them; `fit` gives a network the form that is compiled."""
        calls: Sequence[Forward] = _compiled_once(self.networks, engine, fit) if engine.compiles else [*self.networks]

        def forward(images: Tensor) -> Tensor:
            pieces = [partial(call, part) for call, part in zip(calls, self._parts(images), strict=True)]
            return torch.cat(side_by_side(pieces, engine))

        return forward

    def _parts(self, images: Tensor) -> Sequence[Tensor]:
        return images.chunk(len(self.networks))


def as_one(networks: Sequence[nn.Module]) -> nn.Module:
    """Several networks as one; a single one as it is."""
    return Several(networks) if len(networks) > 1 else networks[0]


def each_of(network: nn.Module) -> list[nn.Module]:
    """The networks that `as_one` was given."""
    return list(network.networks) if isinstance(network, Several) else [network]


@cache
def draws_in_training(name: str, task: Task) -> bool:
    """Whether a network draws random numbers while it is trained, as dropout does."""
    with torch.random.fork_rng():
        network = build_network(name, task).train()
        before = torch.get_rng_state()
        network(example_images(network, task, 2))
        return not torch.equal(before, torch.get_rng_state())


def _compiled_once(
    networks: Iterable[nn.Module], engine: Engine, fit: Callable[[nn.Module], nn.Module]
) -> list[Forward]:
    """The networks as functions that differ in their weights, which are arguments, and so share what is compiled."""
    first, *_ = networks
    structure = fit(copy.deepcopy(first).to("meta").train())
    names = {name for name, _ in _weights(structure)}
    compiled = engine.compiled(partial(_computed, structure))
    return [
        partial(compiled, {name: value for name, value in _weights(network) if name in names}) for network in networks
    ]


def _computed(structure: nn.Module, weights: dict[str, Tensor], images: Tensor) -> Tensor:
    return functional_call(structure, weights, (images,))


def _weights(network: nn.Module) -> list[tuple[str, Tensor]]:
    return [*network.named_parameters(), *network.named_buffers()]
