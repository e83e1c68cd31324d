"""What a long run shows and leaves: bars with time left, plain lines where there is no terminal, metrics as JSON lines
and for TensorBoard."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from teddy.stopping import stop_if_asked

POINTS_PER_STAGE = 200  # metrics kept of one stage: enough for a curve, few enough to cost nothing
SECONDS_BETWEEN_LINES = 10.0


class Stage(Protocol):
    """A piece of work that goes forward step by step."""

    def step(self, count: int = 1, /, **values: Tensor | float) -> None:
        """So many steps done, and what they measured; tensors are read when a point is due: that waits for the GPU.

        Whoever was asked to stop does so here.
        """


class Unwatched:
    """A stage that nobody watches."""

    def step(self, count: int = 1, /, **values: Tensor | float) -> None:
        """Passed over, but for being asked to stop."""
        del count, values
        stop_if_asked()


class Metrics:
    """Numbers over time: `metrics.jsonl`, and TensorBoard's files where it is installed."""

    def __init__(self, folder: Path | None) -> None:
        self._board: Any = None
        self._lines = (folder / "metrics.jsonl").open("a", encoding="utf-8") if folder else None
        if self._lines is None or folder is None:
            return
        self._lines.write("\n")  # ends a line that an interruption or a full disk has torn
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:  # an optional dependency
            return
        self._board = SummaryWriter(folder / "tensorboard")

    def add(self, stage: str, step: int, values: dict[str, float]) -> None:
        """One point."""
        if self._lines is None:
            return
        self._lines.write(json.dumps({"stage": stage, "step": step, **values}) + "\n")
        if self._board:
            for name, value in values.items():
                self._board.add_scalar(f"{stage}/{name}", value, step)

    def close(self) -> None:
        """Flush both."""
        if self._lines:
            self._lines.close()
        if self._board:
            self._board.close()


def read_metrics(folder: Path, stage: str) -> list[dict[str, float]]:
    """The points of one stage, later ones in place of earlier ones at the same step; torn lines are passed over."""
    points = {}
    with (folder / "metrics.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            with suppress(json.JSONDecodeError):
                point = json.loads(line)
                if point.pop("stage") == stage:
                    points[point["step"]] = point
    return [points[step] for step in sorted(points)]


class _Watched:
    """A stage that is shown, and its metrics kept."""

    def __init__(self, name: str, total: int, metrics: Metrics, show: Callable[[int], object]) -> None:
        self._name, self._metrics, self._show = name, metrics, show
        self._every = max(total // POINTS_PER_STAGE, 1)
        self._done, self._due = 0, 1

    def step(self, count: int = 1, /, **values: Tensor | float) -> None:
        self._done += count
        self._show(self._done)
        stop_if_asked()
        if values and self._done >= self._due:
            self._due = (self._done // self._every + 1) * self._every
            read = {k: float(v.detach() if isinstance(v, torch.Tensor) else v) for k, v in values.items()}
            self._metrics.add(self._name, self._done, read)


@contextmanager
def counting(console: Console | None, title: str, total: int) -> Iterator[Callable[..., None]]:
    """Show how far a count has come, if there is a console; what it yields adds one, or as many as it is told."""
    done = 0

    def add(number: int = 1) -> None:
        nonlocal done
        done += number
        show(done)
        stop_if_asked()

    with _shown(console, title, total) as show:
        yield add


@contextmanager
def searching(console: Console | None, what: str) -> Iterator[Callable[[int], None]]:
    """Show how many have been found while nobody knows how many there are; what it yields is told the number."""
    if console is None or not console.is_terminal:
        yield lambda _: None
        return
    with console.status(f"{what} …") as status:
        yield lambda found: status.update(f"{what}: {found:,} found")


@contextmanager
def watched(console: Console, metrics: Metrics, name: str, title: str, total: int) -> Iterator[Stage]:
    """Show a stage of `total` steps while it runs."""
    with _shown(console, title, total) as show:
        yield _Watched(name, total, metrics, show)


@contextmanager
def _shown(console: Console | None, title: str, total: int) -> Iterator[Callable[[int], object]]:
    if console is None:
        yield lambda done: done
    elif console.is_terminal:
        columns = (
            TextColumn("{task.description:<28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as bars:
            bar = bars.add_task(title, total=total)
            yield lambda done: bars.update(bar, completed=done)
    else:
        lines = _Lines(console, title, total)
        yield lines.show
        lines.end()


class _Lines:
    """Progress where there is no terminal: a line when it starts, every few seconds, and when it ends."""

    def __init__(self, console: Console, title: str, total: int) -> None:
        self._console, self._title, self._total = console, title, total
        self._start = self._last = time.monotonic()
        self._begun: tuple[float, int] | None = None
        self._print(f"{title}: {total} steps")

    def show(self, done: int) -> None:
        now = time.monotonic()
        # What comes first says nothing of the pace: a step that compiled, or all that was done before an interruption.
        since, before = self._begun = self._begun or (now, done)
        if now - self._last > SECONDS_BETWEEN_LINES:
            self._last = now
            left = f", {(now - since) / (done - before) * (self._total - done):.0f} s left" if done > before else ""
            self._print(f"{self._title}: {done}/{self._total}{left}")

    def end(self) -> None:
        self._print(f"{self._title}: done in {time.monotonic() - self._start:.1f} s")

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)
