"""The branch of Algorithm 1: random and early bases are trained on, well-trained ones are pruned."""

import pytest
import torch
from conftest import OpenRun
from pools import PRIOR

from teddy import seeding
from teddy.config import PoolSettings, TeacherTrainingSettings
from teddy.data.source import Source, open_source
from teddy.engine import Engine
from teddy.models.zoo import build_network
from teddy.pool import choice
from teddy.pool.build import build_pool
from teddy.pool.choice import choose_generation
from teddy.pool.store import read_index
from teddy.pool.training import teacher_loader, teacher_loss
from teddy.progress import Unwatched
from teddy.training import start_training, train_as

CPU = torch.device("cpu")
SETTINGS = PoolSettings(
    network="convnet-w16-bn",
    weights="base.safetensors",
    last=12,
    training=TeacherTrainingSettings(epochs=12, batch_size=64, learning_rate=0.05),
)


@pytest.fixture(scope="module")
def digits() -> Source:
    return open_source("digits")


@pytest.mark.parametrize(("epochs", "expected"), [(0, "prior"), (1, "prior"), (12, "post")])
def test_the_rule_on_real_training(digits: Source, epochs: int, expected: str):
    loader = teacher_loader(SETTINGS, digits, Engine(CPU), seed=0)
    with seeding.seeded(0):
        network = build_network(SETTINGS.network, digits.task)
    before = start_training(SETTINGS.training, network)
    steps = range(epochs * loader.batches_per_epoch)
    base = train_as(
        SETTINGS.training, before, loader, teacher_loss, seed=0, steps=steps, stage=Unwatched(), engine=Engine(CPU)
    )
    weights = {name: value.clone() for name, value in base.state_dict().items()}
    chosen = choose_generation(SETTINGS, base, digits, CPU, 0)
    assert chosen.generation == expected, chosen.reason
    assert all(torch.equal(value, weights[name]) for name, value in base.state_dict().items())  # a copy was trained


@pytest.mark.parametrize(
    ("before", "after", "generation", "reason"),
    [
        (60.0, 62.1, "prior", "early in its training: 100 steps at a falling learning rate change its 60.0 % by +2.1"),
        (60.0, 61.9, "post", "well trained: 100 steps at a falling learning rate change its 60.0 % by +1.9"),
        (99.0, 95.0, "post", "change its 99.0 % by -4.0"),
        (15.0, 90.0, "prior", "no better than chance, 15.0 % right"),
    ],
)
def test_the_threshold_and_the_reason(
    digits: Source, before: float, after: float, generation: str, reason: str, monkeypatch: pytest.MonkeyPatch
):
    told = iter([before, after])
    monkeypatch.setattr(choice, "accuracy", lambda *_: next(told))
    monkeypatch.setattr(choice, "_annealed", lambda *_: None)
    chosen = choose_generation(SETTINGS, torch.nn.Identity(), digits, CPU, 0)
    assert chosen.generation == generation
    assert reason in chosen.reason


@pytest.mark.parametrize("generation", ["prior", "post"])
def test_what_is_configured_is_done(digits: Source, generation: str):
    settings = SETTINGS.model_copy(update={"generation": generation})
    assert choose_generation(settings, None, digits, CPU, 0) == (generation, "as configured")


def test_without_weights_the_base_is_random():
    assert choose_generation(PRIOR, None, None, CPU, 0).generation == "prior"  # type: ignore[arg-type]


def test_the_choice_is_told_kept_and_not_made_twice(source: Source, open_run: OpenRun, monkeypatch: pytest.MonkeyPatch):
    build_pool(PRIOR, source, before := open_run("before"))
    settings = PRIOR.model_copy(
        update={"weights": str(before.folder / "pool" / "epoch-004.safetensors"), "generation": "auto"}
    )
    original = choice.choose_generation
    asked: list[int] = []
    monkeypatch.setattr("teddy.pool.build.choose_generation", lambda *given: asked.append(1) or original(*given))
    monkeypatch.setattr("teddy.pool.build.write_index", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build_pool(settings, source, open_run("after"))
    monkeypatch.undo()
    monkeypatch.setattr("teddy.pool.build.choose_generation", lambda *given: asked.append(1) or original(*given))
    build_pool(settings, source, run := open_run("after"))
    index = read_index(run.folder)
    assert asked == [1]
    assert f"pool: {index['generation']} generation, since {index['reason']}" in (run.folder / "log.txt").read_text()
