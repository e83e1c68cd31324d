"""Several processes under torchrun, on one machine or many, which share the run folder; on one process nothing at all.

Work is split into pieces that do not depend on each other, and every process does its share; what one makes, the others
read from the run folder. So nothing depends on how many there are.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from teddy.stopping import stop_if_asked

SECONDS_BETWEEN_LOOKS = 0.05
SIGNALLED = 128  # exit codes from here on are of processes that were told to stop
T = TypeVar("T")


@dataclass
class World:
    """The processes that work together, and which one this is; the first of them writes what is shared."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    _store: Any = None
    _waits: dict[str, int] = field(default_factory=dict)

    @property
    def first(self) -> bool:
        """Whether this process is the one that speaks and writes for all."""
        return self.rank == 0

    def share(self, pieces: Sequence[T]) -> list[T]:
        """Those of the pieces, which are the same for every process, that this one does."""
        self.wait("share")  # nobody begins while somebody still looks at what there is to do
        return list(pieces[self.rank :: self.size])

    def wait(self, name: str) -> None:
        """Until every process has come here; a signal ends the waiting."""
        if self._store is None:
            return
        self._waits[name] = self._waits.get(name, 0) + 1
        key = self._key(name)
        self._store.add(key, 1)
        while self._store.add(key, 0) < self.size:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            stop_if_asked()

    def looked(self, seen: T) -> T:
        """What this process has seen, when all have looked: nobody changes it meanwhile."""
        self.wait("looked")
        return seen

    def meet(self, name: str) -> Any:
        """A store for the processes, all of which have come here, with keys of its own."""
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        self.wait(name)
        return PrefixStore(self._key(name), self._store)

    def _key(self, name: str) -> str:
        # Torchrun keeps the store when it starts processes again.
        return f"teddy/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}/{self._waits[name]}"


@cache
def world() -> World:
    """As torchrun has set it up; one process where it has not."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "MASTER_ADDR" not in os.environ:
        return World()
    from torch.distributed.rendezvous import rendezvous

    store, rank, size = next(iter(rendezvous("env://")))
    return World(rank, size, int(os.environ.get("LOCAL_RANK", "0")), store)


@contextmanager
def silenced() -> Iterator[None]:
    """Inside, only the first process says something."""
    if _rank() == 0:
        yield
        return
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def speaker(exit_code: int) -> str | None:
    """How an error that ends this process begins; nothing if it is not this one's to say: the first process says what
    all have found, and whoever was told to stop need not say so."""
    if _rank() == 0:
        return ""
    at_work = world.cache_info().currsize > 0 and bool(world()._waits)
    return f"process {_rank()}: " if at_work and exit_code < SIGNALLED else None


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))
