"""What a run would take: the sums over stages, from a pace that is given."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from conftest import QUICK, QUICK_ARGUMENTS, Shown
from rich.console import Console

import teddy as library
from teddy import estimation
from teddy.config import Config
from teddy.engine import Engine
from teddy.estimation import MOST_STEPS, PREPARING, _Enough, _Pace, _pace, estimate_stages
from teddy.progress import Stage
from teddy.resolve import image_bytes, pool_bytes, resolve
from teddy.students import student_loader


class Once:
    """Lets work go on for one step."""

    def step(self, *_: object, **__: object) -> None:
        raise _Enough


SETTINGS = QUICK | {"pool.every": 1, "pool.training.epochs": 3, "method.iterations": 50, "method.classes_per_group": 5}


def config_with(**settings: object) -> Config:
    return resolve("digits", ipc=4, method=None, recipe=None, settings=SETTINGS | settings)


@pytest.fixture
def given_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimation, "_pace", lambda *_: _Pace(preparation=3.0, step=0.01))
    monkeypatch.setattr(estimation, "_seconds_per_image", lambda *_, **__: 0.001)


@pytest.fixture(scope="module")
def digits() -> object:
    from teddy.data.source import open_source

    return open_source("digits")


def seconds(config: Config, digits: object) -> list[float]:
    return [stage.seconds for stage in estimate_stages(config, digits, Engine(torch.device("cpu")))]  # type: ignore[arg-type]


@pytest.mark.usefixtures("given_pace")
def test_stages_add_up(digits: object):
    pool, synthesis, evaluation = seconds(config_with(), digits)
    # 3 epochs of 6 batches; three members look at 1,438 + 359 images
    assert pool == pytest.approx(3 + 18 * 0.01 + 3 * (1438 + 359) * 0.001)
    # 4 indices × 2 blocks of classes, one at a time
    assert synthesis == pytest.approx(3 + 50 * 8 * 0.01)
    # four rows of two students, two epochs of one batch, prepared for soft and for hard labels; one of an epoch of six;
    # twelve looks at the test images
    look = 12 * 359 * 0.001
    assert evaluation == pytest.approx(2 * 3 + 4 * 2 * (2 * 0.01 + look) + 3 + 6 * 0.01 + look)


def pace_of_one_step(work: Callable[[Stage], None], engine: Engine) -> _Pace:
    del engine
    with suppress(_Enough):
        work(Once())
    return _Pace(preparation=3.0, step=0.01)


def test_students_are_timed_as_they_will_train(digits: object, monkeypatch: pytest.MonkeyPatch):
    groups = []

    def noting(row: object, numbers: Sequence[int], *given: object, **more: object) -> object:
        groups.append(len(numbers))
        return student_loader(row, numbers, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(estimation, "student_loader", noting)
    monkeypatch.setattr(estimation, "_pace", pace_of_one_step)
    monkeypatch.setattr(estimation, "_seconds_per_image", lambda *_, **__: 0.001)
    config = config_with(**{"engine.students": 2, "evaluation.seeds": 5, "evaluation.full_data_seeds": 2})
    look = 12 * 359 * 0.001
    # five students in groups of 2, 2 and 1, two epochs of one batch; two on the full data, an epoch of six
    expected = 2 * 2 * 3 + 4 * (3 * 2 * 0.01 + 5 * look) + 3 + 6 * 0.01 + 2 * look
    assert seconds(config, digits)[2] == pytest.approx(expected)
    assert groups == [2, 1] * 2 + [2]  # the controls train as the distilled images do


@pytest.mark.usefixtures("given_pace")
def test_memory_is_that_of_the_steps_and_not_of_the_trial_before_them(digits: object, monkeypatch: pytest.MonkeyPatch):
    told: list[str] = []
    trial, pace = estimation.groups_side_by_side, estimation._pace
    monkeypatch.setattr(estimation, "_start_measuring_memory", lambda: told.append("memory"))
    monkeypatch.setattr(estimation, "groups_side_by_side", lambda *given: (told.append("trial"), trial(*given))[1])
    monkeypatch.setattr(estimation, "_pace", lambda *given: (told.append("pace"), pace(*given))[1])
    seconds(config_with(), digits)
    after = told[told.index("trial") :]
    assert after[:3] == ["trial", "memory", "pace"]


def test_teachers_are_looked_at_in_single_precision(digits: object, monkeypatch: pytest.MonkeyPatch):
    used: list[Engine | None] = []

    def look(network: object, images: object, preprocessing: object, engine: Engine | None) -> None:
        del network, images, preprocessing
        used.append(engine)
        raise _Enough

    monkeypatch.setattr(estimation, "accuracy", look)
    monkeypatch.setattr(estimation, "_pace", pace_of_one_step)
    seconds(config_with(), digits)
    assert used == [None, Engine(torch.device("cpu"))]  # the pool's, then the students'


class Time:
    """A clock that goes only when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(estimation.time, "perf_counter", lambda: self.now)


@pytest.mark.parametrize(("seconds_each", "steps"), [(0.001, MOST_STEPS), (0.3, 4), (7.0, 2)])
def test_a_pace_is_that_of_the_steps_after_the_first(seconds_each: float, steps: int, monkeypatch: pytest.MonkeyPatch):
    time, done = Time(monkeypatch), []

    def work(stage: Stage) -> None:
        time.now += 20  # until anything runs
        while True:
            time.now += seconds_each if len(done) >= PREPARING[0] else 5
            done.append(time.now)
            stage.step(3, loss=1.0)

    pace = _pace(work, Engine(torch.device("cpu")))
    assert pace.preparation == pytest.approx(20 + 5 * PREPARING[0])
    assert pace.step == pytest.approx(seconds_each)
    assert len(done) == PREPARING[0] + steps


def test_what_is_compiled_is_timed_with_a_full_cache(monkeypatch: pytest.MonkeyPatch):
    time, begun = Time(monkeypatch), []

    def work(stage: Stage) -> None:
        time.now += 4 if begun else 60
        begun.append(time.now)
        while True:
            time.now += 1
            stage.step()

    engine = replace(Engine(torch.device("cpu")), compiles=True)
    assert _pace(work, engine) == _Pace(4 + PREPARING[0], 1)
    assert len(begun) == 2


@pytest.mark.usefixtures("given_pace")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pool.unit": "iterations", "pool.last": 7}, 3 + 0.07 + 5.391 / 3 * 7),
        ({"pool.class_means": False}, 3 + 0.18 + 3 * 0.359),
        ({"pool.bases": 4}, 4 * (3 + 0.18 + 5.391)),
        ({"pool.generation": "post", "pool.pruning.members": 3, "pool.training.epochs": 4}, 3 + 0.24 + 0.18 + 5.391),
    ],
)
def test_every_kind_of_pool(digits: object, settings: dict[str, object], expected: float):
    assert seconds(config_with(**settings), digits)[0] == pytest.approx(expected)


@pytest.mark.usefixtures("given_pace")
def test_random_images_need_no_synthesis(digits: object):
    config = resolve("digits", ipc=4, method="random", recipe=None, settings=SETTINGS)
    assert seconds(config, digits)[1] == 0


@pytest.mark.usefixtures("given_pace")
def test_without_the_full_data_the_rest_is_estimated(digits: object):
    *_, evaluation = seconds(config_with(**{"evaluation.full_data_seeds": 0}), digits)
    assert evaluation == pytest.approx(2 * 3 + 4 * 2 * (2 * 0.01 + 12 * 359 * 0.001))


def test_a_few_steps_of_each_stage_are_really_made():
    stages = list(library.estimate("digits", ipc=1, settings=QUICK, console=Console(quiet=True)))
    assert [stage.stage for stage in stages] == ["pool", "synthesis", "students: convnet-d1-w4-bn"]
    assert all(stage.seconds > 0 and stage.memory > 10**7 for stage in stages)


@pytest.mark.parametrize("network", ["convnet-d1-w4-in", "convnet-d1-w4-bn"])
def test_class_wise_statistics_and_networks_without_batchnorm_are_estimated_too(network: str):
    settings = QUICK | {"pool.network": network, "method.statistics": "both", "method.class_wise_layers": "every"}
    assert len(list(library.estimate("digits", ipc=1, settings=settings, console=Console(quiet=True)))) == 3


def test_disk_is_what_the_check_before_a_run_counts(digits: object):
    config = config_with()
    pool, synthesis, _ = estimate_stages(config, digits, Engine(torch.device("cpu")))  # type: ignore[arg-type]
    assert pool.disk == pool_bytes(config.pool, digits)  # type: ignore[arg-type]
    assert synthesis.disk == image_bytes(config, digits)  # type: ignore[arg-type]


def test_the_command_shows_a_table(teddy: Callable[..., Shown]):
    shown = teddy("estimate", "digits", "--ipc", 1, *QUICK_ARGUMENTS)
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0].split() == ["stage", "time", "memory", "disk"]
    assert [line.split()[0] for line in lines[1:]] == ["pool", "synthesis", "students:", "in"]


def test_a_mistake_is_one_line(teddy: Callable[..., Shown]):
    shown = teddy("estimate", "digits", "--ipc", 1, "--set", "pool.network=resnet81")
    assert shown.code == 2
    assert "unknown network 'resnet81'" in shown.err.splitlines()[-1]
