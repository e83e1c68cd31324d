"""The pool stage: weak teachers from one base network, whichever way suits it (the branch of Algorithm 1)."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from teddy import seeding
from teddy.config import PoolSettings
from teddy.data.source import Source
from teddy.errors import TeddyError
from teddy.models.layers import normalisation_layers
from teddy.models.zoo import build_network, check_network
from teddy.pool.base import digest, load_base
from teddy.pool.choice import Choice, choose_generation
from teddy.pool.existing import check_fits, take_over
from teddy.pool.pool import Pool
from teddy.pool.post import make_post
from teddy.pool.prior import make_prior, train_base
from teddy.pool.store import FOLDER, INDEX, read_pool, write_index
from teddy.run import Run
from teddy.training import accuracy

BASE = f"{FOLDER}/base.safetensors"  # a base that was trained here to be pruned
CHOICE = f"{FOLDER}/choice.json"


def build_pool(settings: PoolSettings, source: Source, run: Run) -> Pool:
    """The pool of this run: made, or taken over, and left in its folder, if it is not there yet; and read."""
    run.once("pool", partial(_provide, settings, source, run))
    return read_pool(run, source.task)


def _provide(settings: PoolSettings, source: Source, run: Run) -> None:
    if run.has(INDEX):
        return
    if settings.folder:
        take_over(Path(settings.folder), run)
    else:
        _make(settings, source, run)


def check_pool(settings: PoolSettings, source: Source, device: torch.device) -> None:
    """Raise on what would go wrong later: a network or weights that do not fit the data, a pool of other classes."""
    check_network(settings.network, source.task)
    if not normalisation_layers(build_network(settings.network, source.task)):
        raise TeddyError(
            f"pool.network '{settings.network}': has no normalisation layers, whose inputs' statistics Eq. 6 compares; "
            "take convnet-bn or resnet18"
        )
    if settings.folder:
        check_fits(Path(settings.folder), source)
    elif settings.weights:
        load_base(settings.network, Path(settings.weights), source, device)


def _make(settings: PoolSettings, source: Source, run: Run) -> None:
    about: dict[str, Any] | None = None
    given: nn.Module | None = None
    if settings.weights:
        path = Path(settings.weights)
        given = load_base(settings.network, path, source, run.device)
        score = round(accuracy(given, source.test.to(run.device), source.preprocessing), 3)
        about = {"weights": path.name, "sha256": digest(path), "accuracy": score}
        run.say(f"base: {path.name}, {score:.1f} % of the test images right")
    generation, reason = _choose(settings, given, source, run)
    run.say(f"pool: {generation} generation, since {reason}")
    base = given or _untrained(settings, source, run)
    if generation == "prior":
        members = make_prior(settings, base, source, run)
    else:
        members = make_post(settings, given or _trained(settings, base, source, run), source, run)
    write_index(run, source, members, network=settings.network, generation=generation, reason=reason, base=about)


def _choose(settings: PoolSettings, base: nn.Module | None, source: Source, run: Run) -> Choice:
    """The same when an interrupted run goes on, whatever rounding does to the measurement."""
    if run.has(CHOICE):
        return Choice(**run.read_json(CHOICE))
    choice = choose_generation(settings, base, source, run.device, run.seed)
    if base is not None:
        run.write_json(CHOICE, choice._asdict())
    return choice


def _untrained(settings: PoolSettings, source: Source, run: Run) -> nn.Module:
    with seeding.seeded(run.seed, "pool", "network"):
        return build_network(settings.network, source.task)


def _trained(settings: PoolSettings, base: nn.Module, source: Source, run: Run) -> nn.Module:
    """The base trained to the end of its schedule, which the run folder keeps."""
    if not run.has(BASE):
        batches = -(-len(source.train) // settings.training.batch_size)
        trained = train_base(settings, base, source, run, last=settings.training.epochs * batches)
        run.write_tensors(BASE, trained.state_dict())
    base.load_state_dict(run.read_tensors(BASE))
    return base
