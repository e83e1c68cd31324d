"""What the benchmarks of the engine share: a matrix product to compare with, timing, tables."""

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from teddy.data.loaders import Batch, Epochs, ahead, endless
from teddy.data.source import Task
from teddy.engine import Engine
from teddy.models.zoo import build_network
from teddy.pool.measuring import running_statistics
from teddy.pool.pool import Pool, Teacher, freeze


def arguments(description: str | None, **defaults: Any) -> argparse.Namespace:
    """Options by name with their defaults, and --json."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def matrix_rate(device: torch.device, side: int = 8192) -> float:
    """Operations a second of a bf16 matrix product on random data: the ceiling of everything here."""
    side = side if device.type == "cuda" else 1024
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * side**3 / seconds_of(lambda: a @ b, calls=20)


def seconds_of(work: Callable[[], object], *, calls: int, repeats: int = 3, warm_up: bool = True) -> float:
    """Seconds of one call: the median over repeats of the mean over calls, after a warm-up."""
    if warm_up:
        work()
    times = []
    for _ in range(repeats):
        wait()
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        wait()
        times.append((time.perf_counter() - begin) / calls)
    return statistics.median(times)


def wait() -> None:
    """For the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def some_pool(network: str, task: Task, size: int, engine: Engine) -> Pool:
    """Untrained teachers: the arithmetic is the same."""
    teachers = []
    for number in range(size):
        torch.manual_seed(number)
        built: nn.Module = freeze(engine.place(build_network(network, task)))
        kept = running_statistics(built)
        teachers.append(Teacher(f"t{number}", 0.0, built, kept.means, kept.variances))
    return Pool(tuple(teachers))


def prepared(step: Callable[[Batch], object], loader: Epochs, engine: Engine) -> Callable[[], object]:
    """A step on the next batch, after everything that the first ones compile and capture."""
    batches = ahead(endless(loader), engine.device) if engine.captures else endless(loader)
    for _ in range(10):
        step(next(batches))
    return lambda: step(next(batches))


def peak_gib() -> float:
    """The most memory that tensors have taken since the last call."""
    if not torch.cuda.is_available():
        return 0.0
    peak = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return peak


def report(rows: Sequence[dict[str, Any]], file: Path | None) -> None:
    """A table, and JSON with what ran."""
    headings = list(dict.fromkeys(key for row in rows for key in row))
    cells = [headings, *([_shown(row.get(key, "")) for key in headings] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(headings))]
    for line in cells:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)), flush=True)
    if file:
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        about = {"device": device, "torch": torch.__version__, "commit": _commit(), "rows": list(rows)}
        file.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _commit() -> str | None:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
