"""One network trained by several processes: each computes its part of every batch, and all make the same step.

PyTorch's DistributedDataParallel takes the mean of the gradients. Batches, their order and augmentation are the same
everywhere; so is every decision: processes stop after the same step, and only the first writes.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from teddy import stopping
from teddy.distributed import World
from teddy.engine import Engine
from teddy.errors import TeddyError
from teddy.models.synchronised import with_synchronised_norms

STEPS_BETWEEN_LOOKS = {"cpu": 1, "cuda": 16}  # whether somebody was asked to stop
LONGEST_WAIT = timedelta(hours=12)  # for the first, which measures a teacher on all images; torchrun sees who has died
SECONDS_TO_BE_ENDED = 10.0


@dataclass(frozen=True)
class Processes:
    """Those that train a network together, and which one this is; one process needs nothing of it."""

    rank: int = 0
    size: int = 1
    synchronise_norms: bool = False
    _joined: list[nn.Module] = field(default_factory=list, compare=False, repr=False)

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    @property
    def own(self) -> tuple[int, ...]:
        """What makes the others' random numbers differ from the first's, which are those of one process."""
        return (self.rank,) if self.rank else ()

    def suited(self, engine: Engine) -> Engine:
        """The engine without what is not known to go together with communication inside a step."""
        if self.size == 1:
            return engine
        plain = self.synchronise_norms
        compiles, fuses = engine.compiles and not plain, engine.fuses and not plain
        return replace(engine, captures=False, compiles=compiles, fuses=fuses)

    def network(self, network: nn.Module) -> nn.Module:
        """The network as it is to be computed."""
        return with_synchronised_norms(network) if self.size > 1 and self.synchronise_norms else network

    def joined(self, network: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        """`forward`, which computes `network`; after its backward pass gradients are the mean over processes."""
        if self.size == 1:
            return forward
        self._joined.append(DistributedDataParallel(_Forward(network, forward)))
        number = len(self._joined) - 1
        return lambda images: self._joined[number](images)

    def part(self) -> None:
        """Let go of what uses the connection, whoever else still has a network: its threads end with it."""
        self._joined.clear()
        gc.collect()
        dist.destroy_process_group()

    def mean(self, value: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """From the mean over this process's images: what to differentiate, and the mean over those of all.

        The mean of the processes' gradients is then the gradient of the mean over all images, also where some have one
        image more.
        """
        if self.size == 1:
            return value, value.detach()
        number = torch.full_like(value, count)
        sums = torch.stack([value.detach() * count, number])
        dist.all_reduce(sums)
        return value * (count * self.size / sums[1]), sums[0] / sums[1]

    def largest(self, number: int) -> int:
        """The largest of the numbers that the processes have; waits for all of them."""
        if self.size == 1:
            return number
        shared = torch.tensor(number)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return int(shared)

    def wait(self) -> None:
        """Until every process has come here."""
        self.largest(0)


ALONE = Processes()


@contextmanager
def together(world: World, device: torch.device, *, synchronise_norms: bool) -> Iterator[Processes]:
    """The processes, connected; inside, a signal that one of them hears stops all of them after the same step."""
    backend, store = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl", world.meet("together")
    dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.size, timeout=LONGEST_WAIT)
    processes = Processes(world.rank, world.size, synchronise_norms)
    stopped = None
    try:
        with stopping.agreed(processes.largest, every=STEPS_BETWEEN_LOOKS[device.type]):
            try:
                yield processes
            except stopping.Stopped as signal:
                stopped = signal
            processes.wait()  # the first may still be writing, and torchrun ends all when one leaves
    except RuntimeError as error:
        if not _is_lost(error):
            raise
        _wait_to_be_ended()
        raise TeddyError("the connection to another process is lost; run the same command again to go on") from None
    processes.part()
    if stopped:
        raise stopped


class _Forward(nn.Module):
    """A network's parameters and buffers, with another way to compute it."""

    def __init__(self, network: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.network = network
        self._call = (forward,)  # in a tuple, or it would be a module in here too

    def forward(self, images: Tensor) -> Tensor:
        return self._call[0](images)


def _is_lost(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def _wait_to_be_ended() -> None:
    """Torchrun ends the others when one has died, and says which; errors about it would only hide that."""
    begin = time.monotonic()
    while time.monotonic() - begin < SECONDS_TO_BE_ENDED:
        time.sleep(0.05)
        stopping.stop_if_asked()
