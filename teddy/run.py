"""The run folder: the only state of a run. Stop at any time; the same command goes on where it was.

Every artefact is written beside its place and renamed into it, so that what is there is whole; `manifest.json` says
that the run is complete and is written last.
"""

import errno
import gzip
import hashlib
import json
import logging
import platform
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

import torch
import yaml
from rich.console import Console
from safetensors.torch import save as save_tensors
from torch import Tensor

from teddy.config import Config, PoolConfig
from teddy.distributed import world
from teddy.engine import choose_engine
from teddy.errors import TeddyError
from teddy.files import SUMS, is_left_of, read_checked, read_tensors, remove_checked, write_checked, write_whole
from teddy.locking import FILES as LOCKING
from teddy.locking import held
from teddy.parsing import parse_config, read_recipe
from teddy.progress import Metrics, Stage, watched
from teddy.version import __version__

CONFIG = "config.yaml"
MANIFEST = "manifest.json"
STAGES = "stages.json"
SOURCE, SEEN = "source.json", "source_files.json.gz"
NAMED = 3  # files that an error names
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
UNCHECKED = {
    MANIFEST,
    SEEN,
    "log.txt",
    "metrics.jsonl",
    STAGES,
    *LOCKING,
}  # what differs between runs that are the same
PASSED_OVER = {"tensorboard", SUMS}  # folders
VERSIONED = ("torch", "torchvision", "numpy", "pillow", "scikit-learn")


class StageCost(TypedDict):
    """What a stage took: time, and on a GPU the most memory that it held."""

    seconds: float
    gpu_bytes: int | None


class Run:
    """An open run folder: where stages read and write and say how far they are, from which seed, on which device."""

    def __init__(self, folder: Path, config: PoolConfig, console: Console | None = None) -> None:
        self.folder = folder
        self.world = world()
        self.seed = config.seed
        self.device = pick_device(config.device)
        self.engine = choose_engine(config.engine, self.device)
        self.groups, self.students = config.engine.groups, config.engine.students
        self.data_parallel = training_processes(config) > 1
        self.synchronise_norms = config.engine.synchronise_norms
        self.console = console or Console(stderr=True) if self.world.first else Console(quiet=True)
        self.metrics = Metrics(folder if self.world.first else None)
        self._log = logging.getLogger(f"teddy.{id(self)}")
        self._log.setLevel(logging.INFO)
        self._log.propagate = False
        if not self.world.first:
            self._log.addHandler(logging.NullHandler())
            return
        handler = logging.FileHandler(folder / "log.txt", encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._log.addHandler(handler)

    def say(self, message: str) -> None:
        """A line for the user and the log."""
        self._log.info(message)
        self.console.print(message, highlight=False, soft_wrap=True)

    @contextmanager
    def stage(self, name: str, title: str, total: int, *, smaller: str = "engine.groups") -> Iterator[Stage]:
        """A stage of `total` steps: shown, logged, measured, timed. `smaller` is the setting to lower if it needs more
        memory than there is."""
        self._log.info("%s: %d steps", title, total)
        start = time.monotonic()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with watched(self.console, self.metrics, name, title, total) as stage:
            try:
                yield stage
            except torch.cuda.OutOfMemoryError:
                raise TeddyError(f"{title}: the memory of {self.device} does not suffice; lower {smaller}") from None
        seconds = time.monotonic() - start
        self._log.info("%s: done in %.1f s", title, seconds)
        if self.world.first:
            memory = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else None
            self.write_json(STAGES, {**self.stages(), name: {"seconds": round(seconds, 2), "gpu_bytes": memory}})

    def once(self, name: str, work: Callable[[], object]) -> None:
        """Work that the first process does for all, while the others wait."""
        if self.world.first:
            work()
        self.world.wait(name)

    def sweep(self, *names: str) -> None:
        """Remove what has served a stage that is done: also where a kill has come between, when it was done before."""

        def remove() -> None:
            for name in names:
                self.remove(name)

        self.once("swept", remove)

    def stages(self) -> dict[str, StageCost]:
        """What each stage took when it last ran."""
        costs: dict[str, StageCost] = self.read_json(STAGES) if self.has(STAGES) else {}
        return costs

    def has(self, name: str) -> bool:
        """Whether an artefact is there; what is there is whole."""
        return (self.folder / name).exists()

    def write(self, name: str, content: bytes) -> None:
        """Write a file so that it is there whole or not at all, and noticed when it is changed."""
        write_checked(self.folder, name, content)

    def write_json(self, name: str, content: Any) -> None:
        """The same for JSON."""
        self.write(name, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())

    def write_tensors(self, name: str, tensors: dict[str, Tensor], about: dict[str, str] | None = None) -> Path:
        """The same for tensors, as safetensors, with text `about` them in the header; gives the file."""
        self.write(name, save_tensors({key: tensor.contiguous().cpu() for key, tensor in tensors.items()}, about))
        return self.folder / name

    def remove(self, name: str) -> None:
        """An artefact that has served, a file or a folder."""
        remove_checked(self.folder, name)

    def read_json(self, name: str) -> Any:
        """A JSON artefact."""
        try:
            return json.loads(read_checked(self.folder, name))
        except ValueError:  # written without a digest
            raise TeddyError(f"{self.folder / name}: damaged; put it back, or start over with --overwrite") from None

    def read_tensors(self, name: str) -> dict[str, Tensor]:
        """A safetensors artefact."""
        return read_tensors(self.folder, name)

    def note_source(self, description: dict[str, Any], seen: Callable[[], dict[str, str]] = dict) -> None:
        """Keep what the data and its files looked like; raise if a run that goes on finds them changed."""
        if not self.has(SOURCE):
            self.write(SEEN, gzip.compress(json.dumps(seen(), ensure_ascii=False).encode(), mtime=0))
            self.write_json(SOURCE, description)
        elif self.read_json(SOURCE)["fingerprint"] != description["fingerprint"]:
            raise TeddyError(
                f"{self.folder}: the images of '{description['name']}' have changed since the run began"
                f"{self._changes(seen())}; put them back, or start over with --overwrite"
            )

    def _changes(self, now: dict[str, str]) -> str:
        try:
            before = json.loads(gzip.decompress(read_checked(self.folder, SEEN)))
        except (
            TeddyError,
            OSError,
            EOFError,
            ValueError,
            zlib.error,
        ):  # only that something has changed is known
            return ""
        told = [f"{name} is gone" for name in before if name not in now]
        told += [f"{name} is new" for name in now if name not in before]
        told += [f"{name} is another" for name, stamp in now.items() if before.get(name, stamp) != stamp]
        more = f" and {len(told) - NAMED} more" if len(told) > NAMED else ""
        return f" ({', '.join(told[:NAMED])}{more})" if told else ""

    def complete(self) -> None:
        """Everything is there: say so, with versions and checksums."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        names = [path.relative_to(self.folder).as_posix() for path in files]
        checked = [name for name in names if name not in UNCHECKED and not PASSED_OVER & set(name.split("/")[:-1])]
        checksums = {name: hashlib.sha256((self.folder / name).read_bytes()).hexdigest() for name in checked}
        self.write_json(MANIFEST, {"versions": versions(), "sha256": checksums})

    def close(self) -> None:
        """Flush the metrics and let go of the log."""
        self.metrics.close()
        for handler in list(self._log.handlers):
            handler.close()
            self._log.removeHandler(handler)


@contextmanager
def new_run(
    folder: Path, config: PoolConfig, *, bytes_needed: int, overwrite: bool = False, console: Console | None = None
) -> Iterator[Run]:
    """The folder of this very configuration, made or gone on with; refused if it holds something else."""
    if not world().first:
        with _joined(folder, config) as run:
            yield run
        return
    fresh = _claim(folder, config, overwrite)
    try:
        if fresh:
            _require_space(folder, bytes_needed)
            folder.mkdir(parents=True, exist_ok=True)
        with held(folder):
            fresh = _claim(folder, config, overwrite)  # what another process may have left in the meantime
            if fresh:
                _clear(folder)
                write_whole(folder / CONFIG, config.to_yaml().encode())
            run = Run(folder, config, console)
            run.world.wait("opened")
            try:
                yield run
            finally:
                run.close()
    except OSError as error:
        nothing_done = fresh and all(path.parent.name in PASSED_OVER for path in folder.glob("*/*"))
        if nothing_done:
            shutil.rmtree(folder, ignore_errors=True)
        if error.errno in NOT_ALLOWED:
            raise TeddyError(f"--out {folder}: cannot be written ({error.strerror}); name another folder") from None
        if error.errno not in NO_SPACE:
            raise
        rest = (
            "nothing was left behind"
            if nothing_done
            else "what is finished is kept; free some and run the same command again"
        )
        raise TeddyError(f"{folder}: no space left on the device; {rest}") from None


@contextmanager
def existing_run(folder: Path, console: Console | None = None) -> Iterator[tuple[Run, Config]]:
    """A run folder that is there, with its configuration."""
    if not (folder / CONFIG).is_file():
        raise TeddyError(f"{folder}: not a run folder (no {CONFIG} in it); 'teddy distill' makes one")
    tree = read_recipe(folder / CONFIG)
    if "ipc" not in tree:
        raise TeddyError(f"{folder}: holds a pool and no run; 'teddy distill --pool {folder}' makes one with it")
    config = parse_config(tree)
    if not world().first:
        with _joined(folder, config) as run:
            yield run, config
        return
    with held(folder):
        run = Run(folder, config, console)
        run.world.wait("opened")
        try:
            yield run, config
        finally:
            run.close()


@contextmanager
def _joined(folder: Path, config: PoolConfig) -> Iterator[Run]:
    """The folder that the first process has opened."""
    world().wait("opened")
    run = Run(folder, config)
    try:
        yield run
    finally:
        run.close()


def pick_device(name: str) -> torch.device:
    """The device by name; 'auto' takes the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and world().size > 1:
        name = f"cuda:{world().local_rank}"
        torch.cuda.set_device(name)
    device = torch.device(name)
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available[device.type]:
        raise TeddyError(f"device '{name}': PyTorch finds none on this machine; leave it at auto")
    return device


def training_processes(config: PoolConfig) -> int:
    """How many processes train the pool's base together; one where the first trains for all."""
    wanted, device = config.engine.data_parallel, pick_device(config.device)
    own = device.type == "cpu" or config.device in {"auto", "cuda"}  # else all have the same GPU
    if wanted == "auto":
        wanted = device.type == "cuda" and own
    if wanted and world().size > 1 and not own:
        raise TeddyError(
            f"engine.data_parallel: device '{config.device}' is the same one for all processes; leave it at auto"
        )
    return world().size if wanted else 1


def versions() -> dict[str, str]:
    """What ran."""
    packages = {name: metadata.version(name) for name in VERSIONED}
    return {"teddy": __version__, "python": platform.python_version(), **packages}


def _claim(folder: Path, config: PoolConfig, overwrite: bool) -> bool:
    """True if the folder is to be made anew, False if this run goes on in it."""
    if folder.exists() and not folder.is_dir():
        raise TeddyError(f"--out {folder}: is a file; name a folder")
    if not folder.exists() or all(path.name in LOCKING or is_left_of(path, CONFIG) for path in folder.iterdir()):
        return True
    if not (folder / CONFIG).is_file():
        raise TeddyError(f"--out {folder}: holds files that are no run of Teddy's; name another folder")
    if overwrite:
        return True
    try:
        before = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError):
        raise TeddyError(
            f"--out {folder}: its {CONFIG} is damaged; put it back, or start over with --overwrite"
        ) from None
    difference = _first_difference(_with_new_settings(before, type(config)), yaml.safe_load(config.to_yaml()))
    if difference:
        raise TeddyError(
            f"--out {folder}: holds a run with another configuration ({difference}); the settings of then go on with "
            f"it, --overwrite starts over, another --out keeps both"
        )
    return False


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name in LOCKING:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _with_new_settings(before: Any, kind: type[PoolConfig]) -> Any:
    """A configuration of then with the defaults of what there was not yet: they are what was done without it."""
    try:
        return yaml.safe_load(kind.model_validate_json(json.dumps(before)).to_yaml())
    except (ValueError, TypeError):  # what it names is gone, or was never a setting
        return before


def _first_difference(before: Any, now: Any, path: str = "") -> str | None:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(key for key in now if key not in before)]:
            inner = _first_difference(before.get(key), now.get(key), f"{path}.{key}" if path else key)
            if inner:
                return inner
        return None
    return None if before == now else f"{path} was {before}, now {now}"


def _require_space(folder: Path, bytes_needed: int) -> None:
    place = folder
    while not place.exists():
        place = place.absolute().parent
    free = shutil.disk_usage(place).free
    if free < bytes_needed:
        raise TeddyError(
            f"--out {folder}: no space left; the run needs about {bytes_needed / 1e6:.0f} MB "
            f"and {free / 1e6:.0f} MB are free"
        )
