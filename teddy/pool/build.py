"""The pool stage: weak teachers from one base network, whichever way suits it (the branch of Algorithm 1)."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from teddy.config import PoolSettings
from teddy.data.source import Source
from teddy.errors import TeddyError
from teddy.models.layers import normalisation_layers
from teddy.models.zoo import build_network, check_network
from teddy.pool.base import digest, load_base
from teddy.pool.choice import Choice, choose_generation
from teddy.pool.existing import check_fits, chosen_members, take_over
from teddy.pool.pool import Pool
from teddy.pool.post import make_post
from teddy.pool.prior import CHECKPOINT, make_prior, train_base, untrained
from teddy.pool.store import FOLDER, INDEX, PROGRESS, read_pool, write_index
from teddy.run import Run
from teddy.training import accuracy

BASE = f"{FOLDER}/base.safetensors"  # a base that was trained here to be pruned
CHOICE = f"{FOLDER}/choice.json"


def build_pool(settings: PoolSettings, source: Source, run: Run) -> Pool:
    """The pool of this run: made, or taken over, and left in its folder, if it is not there yet; and read."""
    if not run.world.looked(run.has(INDEX)):
        if settings.folder:
            run.once("pool", partial(take_over, settings, Path(settings.folder), run))
        else:
            _make(settings, source, run)
    run.sweep(PROGRESS)
    return read_pool(run, source.task)


def check_pool(settings: PoolSettings, source: Source, device: torch.device, processes: int = 1) -> None:
    """Raise on what would go wrong later: a network or weights that do not fit the data, a pool of other classes,
    batches too small for the processes that are to train together."""
    check_network(settings.network, source.task)
    if not normalisation_layers(build_network(settings.network, source.task)):
        raise TeddyError(
            f"pool.network '{settings.network}': has no normalisation layers, whose inputs' statistics Eq. 6 compares; "
            "take convnet-bn or resnet18"
        )
    if settings.folder:
        check_fits(Path(settings.folder), source)
        chosen_members(settings, Path(settings.folder))
    elif settings.weights:
        load_base(settings.network, Path(settings.weights), source, device)
    smallest = len(source.train) // -(-len(source.train) // settings.training.batch_size)
    if processes > 1 and smallest < 2 * processes:
        raise TeddyError(
            f"pool.training.batch_size: {smallest} images in a batch are less than two for each of {processes} "
            "processes; take larger batches, or engine.data_parallel=false"
        )


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
    note = partial(write_index, run, source, network=settings.network, generation=generation, reason=reason, base=about)
    if generation == "prior":
        members = make_prior(
            settings, lambda number: given or untrained(settings, source, run.seed, number), source, run
        )
        run.once("pool", partial(note, members))
    else:
        trained = given or _trained(settings, untrained(settings, source, run.seed), source, run)
        run.once("pool", lambda: note(make_post(settings, trained, source, run)))


def _choose(settings: PoolSettings, base: nn.Module | None, source: Source, run: Run) -> Choice:
    """The same for all processes, and when an interrupted run goes on, whatever rounding does to the measurement."""

    def note() -> None:
        if not run.has(CHOICE):
            choice = choose_generation(settings, base, source, run.device, run.seed)
            run.write_json(CHOICE, choice._asdict())

    if base is None:
        return choose_generation(settings, base, source, run.device, run.seed)
    run.once("choice", note)
    return Choice(**run.read_json(CHOICE))


def _trained(settings: PoolSettings, base: nn.Module, source: Source, run: Run) -> nn.Module:
    """The base trained to the end of its schedule, which the run folder keeps."""

    def keep(network: nn.Module) -> None:
        run.write_tensors(BASE, network.state_dict())

    if not run.world.looked(run.has(BASE)):
        batches = -(-len(source.train) // settings.training.batch_size)
        last = settings.training.epochs * batches
        train_base(settings, base, source, run, last=last, at={last}, then=lambda _, network: keep(network))
    run.once("base", partial(run.remove, CHECKPOINT))  # of a training that was interrupted when it was done
    base.load_state_dict(run.read_tensors(BASE))
    return base
