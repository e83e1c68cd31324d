"""Long work that can be taken up in the middle: its state, in the run folder, every now and then and when it is asked
to stop."""

import time

import torch
from torch import Tensor

from teddy import stopping
from teddy.errors import TeddyError
from teddy.run import Run
from teddy.training import Training

SECONDS_BETWEEN = 20.0
PATIENCE = 50  # times as long as the last writing took: a wave of 6,400 images is a gigabyte


class Checkpoint:
    """One file, which is there while the work is under way."""

    def __init__(self, run: Run, name: str) -> None:
        self._run, self._name = run, name
        self._written, self._took = time.monotonic(), 0.0

    @property
    def due(self) -> bool:
        """Whether it is time to write; costs nothing to ask at every step."""
        return stopping.ending() or time.monotonic() - self._written > max(SECONDS_BETWEEN, PATIENCE * self._took)

    def write(self, tensors: dict[str, Tensor]) -> None:
        """The state as it is now."""
        begun = time.monotonic()
        self._run.write_tensors(self._name, tensors)
        self._written = time.monotonic()
        self._took = self._written - begun

    def read(self) -> dict[str, Tensor] | None:
        """What was written last, if anything was; a damaged file counts as nothing."""
        if not self._run.has(self._name):
            return None
        try:
            return self._run.read_tensors(self._name)
        except TeddyError:
            self.remove()
            return None

    def remove(self) -> None:
        """The work is done."""
        self._run.remove(self._name)

    def keep_training(self, training: Training, step: int, **more: Tensor) -> None:
        """A training after `step` steps, if it is time."""
        if self.due:
            self.write(training.state() | {"step": torch.tensor(step), **more})

    def take_up_training(self, training: Training) -> tuple[int, dict[str, Tensor]]:
        """Where a training goes on, and everything that was written with it."""
        tensors = self.read()
        if tensors is None:
            return 0, {}
        training.restore(tensors)
        return int(tensors["step"]), tensors
