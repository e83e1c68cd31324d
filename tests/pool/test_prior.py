"""Prior generation: which snapshots there are, where training ends, and that it can be interrupted anywhere."""

import pytest
import torch
from conftest import OpenRun
from pools import PRIOR, pool_files

from teddy.config import PoolSettings
from teddy.data.loaders import Loader
from teddy.data.source import Source
from teddy.errors import NumbersError
from teddy.pool.build import build_pool
from teddy.pool.store import read_index
from teddy.run import Run


def test_the_trajectory_is_cached_and_training_goes_no_further(source: Source, run: Run):
    pool = build_pool(PRIOR, source, run)
    index = read_index(run.folder)
    assert [member["epoch"] for member in index["members"]] == [1, 3, 4]
    assert (index["generation"], index["reason"]) == ("prior", "the base is not trained yet")
    weights = [teacher.network.state_dict()["classifier.weight"] for teacher in pool.teachers]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    for teacher, epoch in zip(pool.teachers, (1, 3, 4), strict=True):
        assert not teacher.network.training
        assert not any(parameter.requires_grad for parameter in teacher.network.parameters())
        assert len(teacher.class_means) == 3
        assert teacher.network.state_dict()["features.1.num_batches_tracked"] == 3 * epoch
        assert torch.equal(teacher.means[1], teacher.network.state_dict()["features.5.running_mean"])
        assert torch.equal(teacher.variances[0], teacher.network.state_dict()["features.1.running_var"])
    assert sorted(pool_files(run)) == [
        "epoch-001.safetensors", "epoch-003.safetensors", "epoch-004.safetensors", "pool.json",
    ]  # fmt: skip


def test_training_ends_with_the_last_teacher_whatever_the_schedule(
    source: Source, run: Run, monkeypatch: pytest.MonkeyPatch
):
    epochs = []
    original = Loader.draws
    monkeypatch.setattr(Loader, "draws", lambda loader, epoch: epochs.append(epoch) or original(loader, epoch))
    build_pool(PRIOR, source, run)
    assert PRIOR.training.epochs == 6
    assert epochs == [0, 1, 2, 3]


def test_snapshots_by_iterations(source: Source, run: Run):
    settings = PRIOR.model_copy(update={"unit": "iterations", "first": 0, "last": 7, "every": 2})
    pool = build_pool(settings, source, run)
    assert [teacher.name for teacher in pool.teachers] == [f"iteration-00{k}" for k in (0, 2, 4, 6, 7)]
    tracked = [int(t.network.state_dict()["features.1.num_batches_tracked"]) for t in pool.teachers]
    assert tracked == [0, 2, 4, 6, 7]
    assert [m["epoch"] for m in read_index(run.folder)["members"]] == pytest.approx(
        [0, 2 / 3, 4 / 3, 2, 7 / 3], abs=1e-4
    )


def test_three_iterations_are_an_epoch_of_three_batches(source: Source, open_run: OpenRun):
    by_epoch = build_pool(PRIOR, source, open_run("epochs")).teachers[1]
    settings = PRIOR.model_copy(update={"unit": "iterations", "first": 9, "last": 9})
    by_step = build_pool(settings, source, open_run("steps")).teachers[0]
    states = by_epoch.network.state_dict(), by_step.network.state_dict()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def interrupt_and_go_on(
    settings: PoolSettings, source: Source, open_run: OpenRun, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> int:
    """A pool whose making dies in a step and goes on has the bytes of one that did not; gives the steps it took."""
    monkeypatch.setattr("teddy.checkpoint.SECONDS_BETWEEN", -1.0)
    monkeypatch.setattr("teddy.checkpoint.PATIENCE", 0)
    build_pool(settings, source, open_run("undisturbed"))
    steps, original = [], torch.Tensor.backward

    def die(loss: torch.Tensor) -> None:
        steps.append(1)
        if len(steps) == dies_at + 1:
            raise KeyboardInterrupt
        original(loss)

    monkeypatch.setattr(torch.Tensor, "backward", die)
    with pytest.raises(KeyboardInterrupt):
        build_pool(settings, source, open_run("interrupted"))
    run = open_run("interrupted")
    assert not run.has("pool/pool.json")
    build_pool(settings, source, run)
    assert pool_files(run) == pool_files(open_run("undisturbed"))
    return len(steps)


@pytest.mark.parametrize("unit", ["epochs", "iterations"])
@pytest.mark.parametrize("ema", [None, 0.9])
@pytest.mark.parametrize("dies_at", range(0, 12, 2))
def test_an_interrupted_pool_ends_with_the_same_bytes(
    source: Source, open_run: OpenRun, monkeypatch: pytest.MonkeyPatch, dies_at: int, ema: float | None, unit: str
):
    training = PRIOR.training.model_copy(update={"ema": ema, "optimizer": "adamw" if ema else "sgd"})
    marks = {"first": 1, "last": 4} if unit == "epochs" else {"first": 2, "last": 12}
    settings = PRIOR.model_copy(update={"training": training, "unit": unit, **marks})
    steps = interrupt_and_go_on(settings, source, open_run, monkeypatch, dies_at)
    assert steps <= 12 + 1 + 3  # no more than the epoch that was interrupted is done again


def test_several_bases_have_trajectories_of_their_own_and_the_first_is_a_lone_ones(source: Source, open_run: OpenRun):
    alone = build_pool(PRIOR, source, open_run("alone")).teachers
    run = open_run("several")
    pool = build_pool(PRIOR.model_copy(update={"bases": 3}), source, run)
    assert [teacher.name for teacher in pool.teachers] == [
        f"base-{base:03d}-epoch-{epoch:03d}" for epoch in (1, 3, 4) for base in range(3)
    ]
    states = [teacher.network.state_dict() for teacher in pool.teachers]
    for lone, state in zip(alone, states[::3], strict=True):
        assert all(torch.equal(value, state[name]) for name, value in lone.network.state_dict().items())
    weights = {tuple(state["classifier.weight"].flatten().tolist()) for state in states}
    assert len(weights) == 9
    assert set(run.stages()) == {"pool", "pool/1", "pool/2"}
    assert not [name for name in pool_files(run) if "training" in name]


@pytest.mark.parametrize("dies_at", [2, 12, 13, 17, 24])
def test_several_interrupted_bases_end_with_the_same_bytes(
    source: Source, open_run: OpenRun, monkeypatch: pytest.MonkeyPatch, dies_at: int
):
    settings = PRIOR.model_copy(update={"bases": 3})
    steps = interrupt_and_go_on(settings, source, open_run, monkeypatch, dies_at)
    assert steps <= 3 * 12 + 1 + 3


def test_a_pool_that_is_there_is_read_bit_for_bit_and_not_trained_again(source: Source, run: Run):
    first = build_pool(PRIOR, source, run)
    written = (run.folder / "pool" / "epoch-003.safetensors").stat().st_mtime_ns
    second = build_pool(PRIOR, source, run)
    assert (run.folder / "pool" / "epoch-003.safetensors").stat().st_mtime_ns == written
    for a, b in zip(first.teachers, second.teachers, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.class_means, b.class_means, strict=True))
        states = a.network.state_dict(), b.network.state_dict()
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_the_seed_decides_the_pool(source: Source, open_run: OpenRun):
    weights = [
        build_pool(PRIOR, source, open_run(str(place), seed)).teachers[-1].network.state_dict()["classifier.weight"]
        for place, seed in enumerate((0, 0, 1))
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_epoch_zero_is_the_untrained_network(source: Source, run: Run):
    first = build_pool(PRIOR.model_copy(update={"first": 0}), source, run).teachers[0]
    assert first.name == "epoch-000"
    assert first.network.state_dict()["features.1.num_batches_tracked"] == 0


def test_from_a_given_base_the_trajectory_begins_there(source: Source, open_run: OpenRun):
    build_pool(PRIOR, source, before := open_run("before"))
    weights = before.folder / "pool" / "epoch-001.safetensors"
    settings = PRIOR.model_copy(update={"weights": str(weights), "generation": "prior", "first": 0})
    pool = build_pool(settings, source, after := open_run("after"))
    tracked = [int(t.network.state_dict()["features.1.num_batches_tracked"]) for t in pool.teachers]
    assert tracked == [3, 9, 15]
    assert read_index(after.folder)["base"]["weights"] == "epoch-001.safetensors"


def test_a_training_that_goes_wrong_says_so(source: Source, run: Run):
    training = PRIOR.training.model_copy(update={"learning_rate": 1e30})
    with pytest.raises(NumbersError, match="not finite after 3 steps") as error:
        build_pool(PRIOR.model_copy(update={"training": training}), source, run)
    assert error.value.exit_code == 3
