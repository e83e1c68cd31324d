"""How networks are computed on a device: precision, memory layout, compilation."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import nn

from teddy.config import EngineSettings

Function = TypeVar("Function", bound=Callable[..., object])
COMPILED_STEPS = 1000  # compilation takes about as long as so many steps without it


@dataclass(frozen=True)
class Engine:
    """Plain fp32 unless told otherwise; statistics and losses are fp32 in any case."""

    device: torch.device
    half: bool = False
    compiles: bool = False
    backend: str = "inductor"

    def autocast(self) -> torch.autocast:
        """bf16 where that is the precision; weights stay fp32."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.half)

    def compiled(self, function: Function) -> Function:
        """The function, compiled as a whole where that pays."""
        if not self.compiles:
            return function
        return torch.compile(function, dynamic=False, fullgraph=True, backend=self.backend)

    def place(self, network: nn.Module) -> nn.Module:
        """On the device, in the layout that its convolutions like best."""
        network = network.to(self.device)
        return network.to(memory_format=torch.channels_last) if self.half else network  # type: ignore[call-overload]

    def for_steps(self, steps: int) -> "Engine":
        """The same for a piece of work of so many steps: a short one is not worth compiling."""
        return self if steps >= COMPILED_STEPS else replace(self, compiles=False)


def choose_engine(settings: EngineSettings, device: torch.device) -> Engine:
    """bf16 and compilation on a GPU that has them; on a CPU plain fp32, bit for bit the same at any time."""
    capable = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    half = capable if settings.precision == "auto" else settings.precision == "bfloat16"
    compiles = device.type == "cuda" if settings.compile == "auto" else settings.compile
    return Engine(device, half, compiles)
