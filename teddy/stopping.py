"""Being asked to stop: the first signal lets the step end and what is there be written, the second ends at once."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_asked: list[int] = []
_ending: list[int] = []


class Stopped(BaseException):
    """Work has ended where it was asked to; everything that was finished is kept."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.exit_code = 128 + number


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside, the signals are waited for by `stop_if_asked`; to be entered by the main thread."""
    before = {number: signal.signal(number, _note) for number in SIGNALS}
    try:
        yield
    finally:
        _asked.clear()
        _ending.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def ending() -> bool:
    """Whether this is the last step, after which everything has to be written."""
    return bool(_ending)


def stop_if_asked() -> None:
    """To be called between two steps. The one after that in which the signal came is the last: whatever is to be
    written after a step may have been passed already."""
    if _ending:
        raise Stopped(_ending[0])
    number = _looks[-1]()
    if number:
        _ending.append(number)


@contextmanager
def agreed(largest: Callable[[int], int], every: int) -> Iterator[None]:
    """Inside, processes that call `stop_if_asked` equally often stop at the same call, whichever hears the signal.

    `largest` gives the largest of the numbers that they have; it is asked at one call in `every`.
    """
    calls = count(1)

    def look() -> int:
        return largest(_heard()) if next(calls) % every == 0 else 0

    _ending.clear()  # what this process has heard before, the others have not
    _looks.append(look)
    try:
        yield
    finally:
        _looks.remove(look)


def leave_signals_to_the_parent(_: int = 0) -> None:
    """For worker processes: Ctrl-C reaches them too, and the step that is to be ended needs them; their parent ends
    them when it is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _heard() -> int:
    return _asked[0] if _asked else 0


_looks: list[Callable[[], int]] = [_heard]


def _note(number: int, frame: FrameType | None) -> None:
    del frame
    if _asked:
        os._exit(128 + number)
    _asked.append(number)
