"""A network that also gives what its layers were given."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from teddy.matching.statistics import group_statistics
from teddy.models.layers import channels_first, recorded_layers


class Recorder(nn.Module):
    """Wraps a network: images → logits [B, K], and for each recorded layer what `keep` makes of its input [B, C, …].

    The hooks stay on the network until `remove`; forward can be compiled.
    """

    def __init__(self, network: nn.Module, keep: Callable[[Tensor], Any] = lambda features: features) -> None:
        super().__init__()
        self.network = network
        self._keep = keep
        self._kept: dict[int, Any] = {}
        layers = recorded_layers(network)
        self._handles = [layer.register_forward_pre_hook(partial(self._record, k)) for k, layer in enumerate(layers)]

    def _record(self, place: int, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        self._kept[place] = self._keep(channels_first(layer, given[0]))

    def forward(self, images: Tensor) -> tuple[Tensor, list[Any]]:
        """Logits, and what was kept, in the order of the layers."""
        self._kept = {}
        logits: Tensor = self.network(images)
        kept, self._kept = self._kept, {}
        return logits, [kept[place] for place in range(len(self._handles))]

    def remove(self) -> None:
        """Leave the network as it was."""
        for handle in self._handles:
            handle.remove()


class Seen(NamedTuple):
    """What a layer was given: features [G · B, C, …] of G groups, and their statistics if they are known already."""

    features: Tensor
    groups: int
    known: tuple[Tensor, Tensor] | None = None

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and biased variance [G, C] in each group."""
        return self.known or group_statistics(self.features, self.groups)


class GroupRecorder(Recorder):
    """The same for images of several groups, one after the other."""

    def forward(self, images: Tensor, groups: int) -> tuple[Tensor, list[Seen]]:  # type: ignore[override]
        """Logits, and what each recorded layer was given."""
        logits, inputs = super().forward(images)
        return logits, [Seen(features, groups) for features in inputs]
