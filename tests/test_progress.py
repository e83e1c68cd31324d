"""How far a long run has come, where there is no terminal."""

from io import StringIO

import pytest
from rich.console import Console

from teddy import progress
from teddy.progress import counting

TOTAL = 1000
# What comes first and how long it takes, before steps of a tenth of a second.
BEGINNINGS = {
    "as the others": (1, 0.1),
    "a first step that compiles": (1, 34.0),
    "taken up where it was": (500, 0.0),
}


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def told(clock, first, seconds):
    """The lines of a count whose remaining steps take a tenth of a second each."""
    text = StringIO()
    with counting(Console(file=text), "counted", TOTAL) as count:
        clock[0] += seconds
        count(first)
        for _ in range(TOTAL - first):
            clock[0] += 0.1
            count()
    return text.getvalue().splitlines()


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_time_left_is_that_of_the_steps_to_come(clock, beginning):
    lines = told(clock, *BEGINNINGS[beginning])
    shown = [line.removeprefix("counted: ").split(f"/{TOTAL}, ") for line in lines if line.endswith("s left")]
    assert len(shown) > 3
    for done, left in shown:
        assert float(left.removesuffix(" s left")) == pytest.approx((TOTAL - int(done)) * 0.1, abs=1)


def test_a_first_step_has_no_pace_yet(clock):
    assert told(clock, 1, 34.0)[1] == f"counted: 1/{TOTAL}"


def test_the_end_tells_the_whole_time(clock):
    assert told(clock, 1, 34.0)[-1] == "counted: done in 133.9 s"
