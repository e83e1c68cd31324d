"""How networks are computed on a device: precision, memory layout, compilation, replayed graphs."""

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor, nn

from teddy.config import EngineSettings

WORTH_CAPTURING = 50  # steps; preparing takes about as long
WORTH_COMPILING = {"cuda": 1000, "mps": 1000, "cpu": 200}  # a CPU's are longer, and networks alike compile once
WARM_UPS = 3
MOST_SHAPES = 64  # of one network, in one process: sizes of batches, students of one family


@dataclass(frozen=True)
class Engine:
    """Plain fp32 unless told otherwise; statistics and losses are fp32 in any case."""

    device: torch.device
    half: bool = False
    compiles: bool = False
    captures: bool = False
    fuses: bool = False
    backend: str = "inductor"

    def autocast(self) -> torch.autocast:
        """bf16 where that is the precision; weights stay fp32."""
        # Cached casts would be made once inside a captured graph and be stale at its next replay.
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.half, cache_enabled=False)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function or network, compiled as a whole where that pays."""
        if not self.compiles:
            return function
        torch._dynamo.config.recompile_limit = MOST_SHAPES
        return _Compiled(function, self.backend)

    def replayed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of tensors, captured in a CUDA graph after a few calls: short steps else wait for the host."""
        return Replayed(function) if self.captures else function

    def place(self, network: nn.Module) -> nn.Module:
        """On the device, in the layout that its convolutions like best."""
        network = network.to(self.device)
        by_pixel = self.half or self.device.type == "cpu"
        return network.to(memory_format=torch.channels_last) if by_pixel else network

    def frozen_weights(self, network: nn.Module, prefix: str = "") -> dict[str, Tensor]:
        """What a network that is not trained computes with, by name; matrices are cast to bf16 once and for all."""
        named = (*network.named_parameters(), *network.named_buffers())
        return {
            f"{prefix}{name}": value.detach().bfloat16() if self.half and value.dim() > 1 else value
            for name, value in named
        }

    def for_steps(self, steps: int) -> "Engine":
        """The same for a piece of work of so many steps: a short one is not worth preparing for."""
        if steps >= WORTH_COMPILING[self.device.type]:
            return self
        return replace(self, compiles=False, fuses=False, captures=self.captures and steps >= WORTH_CAPTURING)


def choose_engine(settings: EngineSettings, device: torch.device) -> Engine:
    """bf16, compilation and graphs on a GPU; on a CPU plain fp32, the same bit for bit at any time."""
    gpu = device.type == "cuda"
    if gpu:
        torch.backends.cudnn.benchmark = True  # shapes are few and stay
    capable = gpu and torch.cuda.is_bf16_supported(including_emulation=False)
    half = capable if settings.precision == "auto" else settings.precision == "bfloat16"
    compiles = gpu if settings.compile == "auto" else settings.compile
    fuses = gpu and compiles and half and find_spec("triton") is not None
    return Engine(device, half, compiles, captures=gpu and compiles, fuses=fuses)


class _Compiled:
    """A compiled function, or the function itself where it turns out that the compiler cannot take it."""

    def __init__(self, function: Callable[..., Any], backend: str) -> None:
        self._plain = function
        self._call = torch.compile(function, dynamic=False, fullgraph=True, backend=backend)

    def __call__(self, *given: Any) -> Any:
        try:
            return self._call(*given)
        except torch._dynamo.exc.TorchDynamoException as error:
            why = str(error).strip().partition("\n")[0]
            warnings.warn(f"not compiled, slower: {why}", RuntimeWarning, stacklevel=2)
            self._call = self._plain
            return self._plain(*given)


class Replayed:
    """A function of tensors, with effects on others if it has any, captured once for each shape of its inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._refused, self._plain = False, False
        self._calls: Counter[tuple[Any, ...]] = Counter()
        self._graphs: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Tensor]] = {}

    def __call__(self, *inputs: Tensor) -> Tensor:
        """What the function gives, which has to be one tensor."""
        key = tuple((given.shape, given.dtype) for given in inputs)
        self._calls[key] += 1
        if self._calls[key] <= WARM_UPS or self._refused or self._plain:
            self._plain = False
            return self._warm_up(inputs)
        if key not in self._graphs:
            try:
                self._graphs[key] = self._capture(inputs)
            except RuntimeError as error:  # something in it has to ask the host; nothing has been done yet
                self._refused = True
                why = str(error).strip().partition("\n")[0]
                warnings.warn(f"not captured in a graph, slower: {why}", RuntimeWarning, stacklevel=2)
                return self._warm_up(inputs)
        graph, kept, output = self._graphs[key]
        for place, given in zip(kept, inputs, strict=True):
            place.copy_(given, non_blocking=True)
        graph.replay()
        return output.clone()  # the next replay writes over it

    def restart(self) -> None:
        """Make the next call without a graph: what it does may differ from those that were captured."""
        self._plain = True

    def _warm_up(self, inputs: tuple[Tensor, ...]) -> Tensor:
        side, current = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            output = cast(Tensor, self._function(*inputs))
        current.wait_stream(side)
        return output

    def _capture(self, inputs: tuple[Tensor, ...]) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Tensor]:
        kept = tuple(given.clone() for given in inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = cast(Tensor, self._function(*kept))
        return graph, kept, output


class Frozen:
    """A function of frozen networks, compiled once for all that have the same shapes: their weights are its arguments.

    `function` is given a network whose weights are to be taken from elsewhere, the weights by name, and what the call
    was given; it computes with `functional_call(structure, weights, …)`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        engine: Engine,
        wrap: Callable[[nn.Module], nn.Module] = lambda structure: structure,
        prefix: str = "",
    ) -> None:
        self._function, self._engine, self._wrap, self._prefix = function, engine, wrap, prefix
        self._compiled: dict[tuple[torch.Size, ...], tuple[Callable[..., Any], set[str]]] = {}
        self._weights: dict[nn.Module, dict[str, Tensor]] = {}

    def __call__(self, network: nn.Module, *given: Any) -> Any:
        """What the function gives for this network."""
        shapes = tuple(parameter.shape for parameter in network.parameters())
        if shapes not in self._compiled:
            # Of the network only its structure is needed: no second copy of the weights.
            structure = self._wrap(copy.deepcopy(network).to("meta").eval())
            names = {name for name, _ in (*structure.named_parameters(), *structure.named_buffers())}
            self._compiled[shapes] = self._engine.compiled(partial(self._function, structure)), names
        compiled, names = self._compiled[shapes]
        if network not in self._weights:
            weights = self._engine.frozen_weights(network, self._prefix)
            self._weights[network] = {name: value for name, value in weights.items() if name in names}
        return compiled(self._weights[network], *given)


def side_by_side(pieces: Sequence[Callable[[], Tensor]], engine: Engine) -> list[Tensor]:
    """Independent pieces of work; on streams of their own where they are captured, so that small ones overlap."""
    if not engine.captures:
        return [piece() for piece in pieces]
    current, results = torch.cuda.current_stream(), []
    streams = [torch.cuda.Stream() for _ in pieces]
    for piece, stream in zip(pieces, streams, strict=True):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            results.append(piece())
    for stream in streams:
        current.wait_stream(stream)
    return results
