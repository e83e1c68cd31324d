"""Small pools of the two-class source."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from teddy.config import PoolSettings, TeacherTrainingSettings, parse_config
from teddy.run import Run, new_run

PRIOR = PoolSettings(
    network="convnet-d2-w8-bn",
    first=1,
    last=4,
    every=2,
    training=TeacherTrainingSettings(epochs=6, batch_size=8, learning_rate=0.01),
)
OpenRun = Callable[..., Run]


@pytest.fixture
def open_run(tmp_path: Path, quiet: Console) -> Iterator[OpenRun]:
    """Runs in folders of this test, by name."""
    opened = []

    def start(name: str, seed: int = 0) -> Run:
        config = parse_config({"data": {"source": "digits"}, "ipc": 1, "seed": seed})
        context = new_run(tmp_path / name, config, bytes_needed=0, console=quiet)
        opened.append(context)
        return context.__enter__()

    yield start
    for context in opened:
        context.__exit__(None, None, None)


def pool_files(run: Run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run.folder / "pool").iterdir())}
