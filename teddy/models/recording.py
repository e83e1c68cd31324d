"""A network that also gives what its layers were given."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from teddy.matching.statistics import group_statistics
from teddy.models.layers import channels_first, inner_convolutions, recorded_layers


class Recorder(nn.Module):
    """Wraps a network: images → logits [B, K], and for each recorded layer and each of the `further` ones what `keep`
    makes of its input [B, C, …].

    The hooks stay on the network until `remove`; forward can be compiled.
    """

    def __init__(
        self,
        network: nn.Module,
        keep: Callable[[Tensor], Any] = lambda features: features,
        further: Sequence[nn.Module] = (),
    ) -> None:
        super().__init__()
        self.network = network
        self._keep = keep
        self._kept: dict[int, Any] = {}
        layers = [*recorded_layers(network), *further]
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


class Recorded(NamedTuple):
    """What a network makes of images of G groups: logits, what each recorded layer was given, and the `maps`
    [G · B, C, H, W] that its convolutions but the first were given."""

    logits: Tensor
    layers: list[Seen]
    maps: list[Tensor]


class GroupRecorder(Recorder):
    """The same for images of several groups, one after the other, and with maps."""

    def __init__(self, network: nn.Module) -> None:
        convolutions = inner_convolutions(network)
        super().__init__(network, further=convolutions)
        self._num_maps = len(convolutions)

    def forward(self, images: Tensor, groups: int) -> Recorded:  # type: ignore[override]
        """What the network makes of them."""
        logits, inputs = super().forward(images)
        layers = inputs[: len(inputs) - self._num_maps]
        return Recorded(logits, [Seen(features, groups) for features in layers], inputs[len(layers) :])
