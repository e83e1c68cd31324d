"""What the tests share: a small source, a small configuration, the command line in this process."""

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from rich.console import Console

from teddy import cli
from teddy.config import Config
from teddy.data.preprocessing import from_histogram, histogram
from teddy.data.source import Images, Source
from teddy.parsing import parse_config
from teddy.run import Run, new_run

# Without a GPU, kernels are run by Triton's interpreter, which has to be told before they are read.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Workers side by side, each with a thread for every core, would wait for each other most of the time.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

# The whole path on digits in about a second.
QUICK = {
    "pool.network": "convnet-d1-w4-bn",
    "pool.first": 1,
    "pool.last": 3,
    "pool.training.epochs": 3,
    "pool.training.batch_size": 256,
    "method.iterations": 3,
    "method.teachers": 2,
    "evaluation.networks": ["convnet-d1-w4-bn"],
    "evaluation.seeds": 2,
    "evaluation.training.epochs": 2,
    "evaluation.full_data.epochs": 1,
    "evaluation.full_data_seeds": 1,
}
QUICK_ARGUMENTS = [part for key, value in QUICK.items() for part in ("--set", f"{key}={value}")]


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs one after the other."""
    if not torch.cuda.is_available() and find_spec("triton"):
        from teddy.kernels.chunks import Split

        for name in ("measured_norm.ALONE", "measured_norm.ADDED", "trained_norm.SUMMING",
                     "trained_norm.SUMMING_BACKWARD", "trained_norm.APPLYING"):  # fmt: skip
            monkeypatch.setattr(f"teddy.kernels.{name}", Split(rows=64, warps=4, programs=12))
        for name in ("measured_norm.COMBINED", "trained_norm.COMBINED_ROWS"):
            monkeypatch.setattr(f"teddy.kernels.{name}", 4)  # so that there is more than one turn
        monkeypatch.setattr("teddy.kernels.max_pool.BLOCK", 4096)


OpenRun = Callable[..., Run]


class Shown(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def teddy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Shown]:
    """Run a command as a user would, in this process."""

    def run(*arguments: object) -> Shown:
        monkeypatch.setattr("sys.argv", ["teddy", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        shown = capsys.readouterr()
        code = end.value.code
        return Shown(code if isinstance(code, int) else 0, shown.out, shown.err)

    return run


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of each test's own: the user's is left alone."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def quiet() -> Console:
    return Console(quiet=True)


@pytest.fixture
def config() -> Config:
    return parse_config({"data": {"source": "digits"}, "ipc": 1})


@pytest.fixture
def run(tmp_path: Path, config: Config, quiet: Console) -> Iterator[Run]:
    with new_run(tmp_path / "run", config, bytes_needed=0, console=quiet) as opened:
        yield opened


@pytest.fixture
def open_run(tmp_path: Path, quiet: Console) -> Iterator[OpenRun]:
    """Runs in folders of this test, by name; one that is opened again is closed first."""
    opened: dict[str, Any] = {}

    def start(name: str, seed: int = 0) -> Run:
        if name in opened:
            opened[name].__exit__(None, None, None)
        config = parse_config({"data": {"source": "digits"}, "ipc": 1, "seed": seed})
        opened[name] = new_run(tmp_path / name, config, bytes_needed=0, console=quiet)
        return opened[name].__enter__()

    yield start
    for context in opened.values():
        context.__exit__(None, None, None)


@pytest.fixture
def source() -> Source:
    """Two grey and easily told classes, 12 + 6 images of 8 × 8."""
    generator = torch.Generator().manual_seed(0)

    def images(per_class: int) -> Images:
        labels = torch.arange(2).repeat_interleave(per_class)
        pixels = torch.randint(0, 120, (2 * per_class, 1, 8, 8), generator=generator)
        pixels[labels == 1, :, :, 4:] += 120
        return Images(pixels.to(torch.uint8), labels)

    train, test = images(12), images(6)
    preprocessing = from_histogram(histogram(train.pixels))
    return Source("two", ("left", "right"), train, test, 1, 8, preprocessing, fingerprint="two")
