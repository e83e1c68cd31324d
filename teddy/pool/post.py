"""Post generation: members are a well-trained base, pruned at random and briefly trained on (Algorithm 1, second
branch).

The appendix asks for fine-tuning that follows the accuracies of a prior pool. Each member has its accuracy on that
curve to reach, and a learning rate between 0.1 for the weakest, which almost starts over, and 0.001 for the strongest;
it is trained until it has that accuracy, for an epoch at most. The accuracies compared are on the same sample of
training images for the prior pool, the base and the members: no test image has a say.
"""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from torch import nn
from torch.optim.swa_utils import update_bn

from teddy import seeding
from teddy.config import FineTuningSettings, PoolSettings
from teddy.data.images import Images
from teddy.data.loaders import Loader
from teddy.data.source import Source
from teddy.engine import Engine
from teddy.models.padding import padded, take_back
from teddy.models.zoo import example_images
from teddy.optimizers import make_optimizer
from teddy.pool.pruning import pruned, pruning_ratio
from teddy.pool.store import Member, note_members, noted_members, read_index, write_member
from teddy.pool.training import teacher_loader, teacher_loss, training_sample
from teddy.progress import Unwatched
from teddy.run import Run
from teddy.training import Training, accuracy, train

LOOKS_PER_EPOCH = 10
REESTIMATING_IMAGES = 5000
CLOSE = 5.0  # percentage points above its accuracy on the curve, with which a member is left as it is


def make_post(settings: PoolSettings, base: nn.Module, source: Source, run: Run) -> list[Member]:
    """Prune, re-estimate, fine-tune, one member after the other; leave them in the run folder, weakest first."""
    pruning, fine = settings.pruning, settings.pruning.finetuning
    with seeding.seeded(run.seed, "pool", "ratio"):
        ratio = pruning_ratio(base, settings.network, source.task, target=pruning.target, keep=pruning.keep)
    sample = training_sample(source, run.device)
    whole = accuracy(base.to(run.device), sample, source.preprocessing)
    targets = interpolated(_curve(fine, whole), pruning.members)
    rates = geometric(*fine.learning_rates, pruning.members)
    members = noted_members(run)
    title, smaller = f"pool: {settings.network}, pruned by {ratio:.0%}", "pool.pruning.finetuning.batch_size"
    with run.stage("pool", title, pruning.members, smaller=smaller) as stage:
        for number in range(len(members), pruning.members):
            seed, rate = seeding.derive(run.seed, "pool", "pruned", number), rates[number]
            loader = teacher_loader(settings, source, run.engine, seed=seed, batch_size=fine.batch_size)
            with seeding.seeded(seed):
                network = pruned(base, settings.network, source.task, ratio)
                run.engine.place(network)
                reestimate(network, loader)
            trained = padded(network, example_images(network, source.task, 2)) if run.engine.half else network
            steps = _fine_tune(
                trained, fine, loader, sample, seed=seed, rate=rate, target=targets[number], engine=run.engine
            )
            take_back(network, trained)
            member = write_member(
                run,
                source,
                network,
                sample,
                network_name=settings.network,
                name=f"pruned-{number:03d}",
                step=steps,
                epoch=steps / loader.batches_per_epoch,
                class_means=settings.class_means,
                learning_rate=rate if steps else None,
                pruned=True,
            )
            members.append(member)
            note_members(run, members)
            stage.step(accuracy=member["accuracy"])
    return sorted(members, key=lambda member: member["accuracy"])


def reestimate(network: nn.Module, loader: Loader) -> None:
    """New running statistics: pruning leaves those of a network that is gone, and with them a member is worthless."""
    batches = math.ceil(REESTIMATING_IMAGES / len(next(loader.draws(0)).rows))
    update_bn(itertools.islice(loader.epoch(0), batches), network)
    network.eval()


def interpolated(curve: Sequence[float], count: int) -> list[float]:
    """`count` values along `curve`, whose points are evenly spaced, ends included."""
    places = [(len(curve) - 1) * number / max(count - 1, 1) for number in range(count)]
    at = [min(int(place), len(curve) - 2) for place in places]
    return [curve[k] + (place - k) * (curve[k + 1] - curve[k]) for k, place in zip(at, places, strict=True)]


def geometric(first: float, last: float, count: int) -> list[float]:
    """`count` values from `first` to `last`, each the same multiple of the one before."""
    return [first * (last / first) ** (number / max(count - 1, 1)) for number in range(count)]


def _curve(settings: FineTuningSettings, base: float) -> Sequence[float]:
    """Accuracies for the members to have, weakest first, none above the base's."""
    if settings.follow is None:
        return [share * base for share in settings.curve]
    return [min(member["train_accuracy"], base) for member in read_index(Path(settings.follow))["members"]]


def _fine_tune(
    network: nn.Module,
    settings: FineTuningSettings,
    loader: Loader,
    sample: Images,
    *,
    seed: int,
    rate: float,
    target: float,
    engine: Engine,
) -> int:
    """Train until `target` per cent of the sample are right; gives the steps that took."""
    look_every = max(loader.batches_per_epoch // LOOKS_PER_EPOCH, 1)
    done = 0

    def reached(step: int, trained: nn.Module) -> bool:
        nonlocal done
        done = step
        return step % look_every == 0 and accuracy(trained, sample, loader.preprocessing) >= target

    # A member that is too strong as it is trained too: its learning rate throws it back first.
    if 0 <= accuracy(network, sample, loader.preprocessing) - target <= CLOSE:
        return 0
    optimizer = make_optimizer(
        "sgd", network, learning_rate=rate, weight_decay=settings.weight_decay, momentum=settings.momentum
    )
    train(
        Training(network, optimizer),
        loader,
        teacher_loss,
        lambda _: 1.0,
        steps=range(round(settings.epochs * loader.batches_per_epoch)),
        seed=seed,
        stage=Unwatched(),
        engine=engine,
        after_step=reached,
    )
    return done
