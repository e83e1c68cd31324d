"""Post generation: pruned members that a seed decides, with accuracies along a curve, and no test image's say."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import OpenRun
from pools import PRIOR, pool_files
from torch import nn

from teddy.config import PoolSettings
from teddy.data.source import Images, Source
from teddy.engine import Engine
from teddy.models.layers import batch_norms
from teddy.pool import post
from teddy.pool.build import build_pool
from teddy.pool.post import geometric, interpolated, reestimate
from teddy.pool.store import Member, read_index, read_teachers
from teddy.pool.training import teacher_loader
from teddy.run import Run
from teddy.training import accuracy

POST = PoolSettings.model_validate(
    {
        **PRIOR.model_dump(),
        "generation": "post",
        "training": {"epochs": 8, "batch_size": 8, "learning_rate": 0.02},
        "pruning": {"members": 3, "finetuning": {"batch_size": 8}},
    }
)


def change(settings: PoolSettings, **finetuning: object) -> PoolSettings:
    tree = settings.model_dump()
    tree["pruning"]["finetuning"] |= finetuning
    return PoolSettings.model_validate(tree)


def members(run: Run) -> list[Member]:
    return read_index(run.folder)["members"]


def test_values_along_a_curve_by_hand():
    assert interpolated([0.6, 0.8, 1.0], 5) == pytest.approx([0.6, 0.7, 0.8, 0.9, 1.0])
    assert interpolated([0.6, 0.8, 1.0], 2) == pytest.approx([0.6, 1.0])
    assert interpolated([70.0, 80.0], 1) == [70.0]
    assert geometric(0.1, 0.001, 3) == pytest.approx([0.1, 0.01, 0.001])
    assert geometric(0.1, 0.001, 1) == [0.1]


def test_members_are_narrower_than_their_base_and_sorted_by_accuracy(source: Source, run: Run):
    pool = build_pool(POST, source, run)
    index = read_index(run.folder)
    assert index["generation"] == "post"
    assert sorted(member["name"] for member in members(run)) == [f"pruned-00{k}" for k in range(3)]
    scores = [member["accuracy"] for member in members(run)]
    assert scores == sorted(scores)
    for member, teacher in zip(members(run), pool.teachers, strict=True):
        assert member["widths"] == {"features.0": 6, "features.4": 6, "classifier": 2}
        assert teacher.network.features[4].weight.shape == (6, 6, 3, 3)
        assert 0 <= member["epoch"] <= POST.pruning.finetuning.epochs
        assert teacher.accuracy == member["accuracy"]
    assert "base.safetensors" in pool_files(run)  # trained here, to the end of its schedule


def test_the_seed_decides_the_members(source: Source, open_run: OpenRun):
    files = []
    for place, seed in enumerate((0, 0, 1)):
        build_pool(POST, source, run := open_run(str(place), seed))
        files.append(pool_files(run))
    assert files[0] == files[1]
    assert files[0]["pruned-000.safetensors"] != files[2]["pruned-000.safetensors"]
    assert files[0]["pruned-000.safetensors"] != files[0]["pruned-001.safetensors"]


@pytest.mark.parametrize("dies_at", [0, 1, 2])
def test_an_interrupted_pool_ends_with_the_same_bytes(
    source: Source, open_run: OpenRun, monkeypatch: pytest.MonkeyPatch, dies_at: int
):
    build_pool(POST, source, open_run("undisturbed"))
    original, started = post.reestimate, []

    def die(network: nn.Module, loader: object) -> None:
        started.append(1)
        if len(started) == dies_at + 1:
            raise KeyboardInterrupt
        original(network, loader)  # type: ignore[arg-type]

    monkeypatch.setattr(post, "reestimate", die)
    with pytest.raises(KeyboardInterrupt):
        build_pool(POST, source, open_run("interrupted"))
    build_pool(POST, source, run := open_run("interrupted"))
    assert len(started) == 4  # members that were finished are not made again
    assert pool_files(run) == pool_files(open_run("undisturbed"))


def test_no_test_image_has_a_say(source: Source, open_run: OpenRun):
    labels = 1 - source.test.labels
    other = replace(source, test=Images(source.test.pixels.flip(3), labels))
    build_pool(POST, source, one := open_run("one"))
    build_pool(POST, other, two := open_run("two"))
    weights = [{name: data for name, data in pool_files(run).items() if name != "pool.json"} for run in (one, two)]
    assert weights[0] == weights[1]
    assert [m["accuracy"] for m in members(one)] != [m["accuracy"] for m in members(two)]


def test_without_fine_tuning_members_differ_by_their_channels_alone(source: Source, run: Run):
    build_pool(change(POST, epochs=0.0), source, run)
    assert [member["step"] for member in members(run)] == [0, 0, 0]
    assert [member["learning_rate"] for member in members(run)] == [None] * 3
    assert len({data for name, data in pool_files(run).items() if name.startswith("pruned")}) == 3


def test_running_statistics_are_those_of_the_pruned_network(source: Source, run: Run):
    teacher = build_pool(change(POST, epochs=0.0), source, run).teachers[0]
    network = teacher.network
    kept = [tensor.clone() for tensor in teacher.means]
    for layer in (network.features[1], network.features[5]):
        layer.running_mean.fill_(7.0)  # stale
        layer.running_var.fill_(0.01)
    loader = teacher_loader(POST, source, run.engine, seed=1, batch_size=24)
    reestimate(network, loader)
    assert not network.training
    batch = next(iter(loader.epoch(0))).images
    with torch.no_grad():
        torch.testing.assert_close(network.features[1].running_mean, network.features[0](batch).mean((0, 2, 3)))
    for before, after in zip(kept, (network.features[1].running_mean, network.features[5].running_mean), strict=True):
        assert (before - after).abs().max() < 0.5


class Scripted(nn.Module):
    """A network whose accuracy is told, one look after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.weight.expand(len(images), 2)


@pytest.mark.parametrize(
    ("scores", "steps"),
    [
        ([72.0], 0),  # close enough above: left as it is
        ([60.0, 65.0, 69.0, 71.0], 3),  # trained until it is there
        ([90.0, 30.0, 50.0, 70.0], 3),  # too strong: thrown back first
        ([60.0] * 7, 6),  # never there: two epochs of three batches
    ],
)
def test_a_member_is_trained_until_it_has_its_accuracy(
    source: Source, run: Run, monkeypatch: pytest.MonkeyPatch, scores: list[float], steps: int
):
    told = iter(scores)
    monkeypatch.setattr(post, "accuracy", lambda *_: next(told))
    loader = teacher_loader(POST, source, run.engine, seed=0, batch_size=8)
    settings = change(POST, epochs=2.0).pruning.finetuning
    done = post._fine_tune(
        Scripted(), settings, loader, source.train, seed=0, rate=0.1, target=70.0, engine=Engine(run.device)
    )
    assert done == steps
    assert not list(told)


def test_a_pool_follows_the_accuracies_of_a_prior_one(
    source: Source, open_run: OpenRun, monkeypatch: pytest.MonkeyPatch
):
    build_pool(PRIOR, source, prior := open_run("prior"))
    expected = [member["train_accuracy"] for member in members(prior)]
    sought = []
    monkeypatch.setattr(post, "_fine_tune", lambda *_, target, **__: sought.append(target) or 0)
    build_pool(change(POST, follow=str(prior.folder)), source, open_run("post"))
    assert sought == pytest.approx(expected)


def test_the_strongest_is_to_be_as_good_as_the_base(source: Source, run: Run, monkeypatch: pytest.MonkeyPatch):
    sought = []
    monkeypatch.setattr(post, "_fine_tune", lambda *_, target, **__: sought.append(target) or 0)
    build_pool(POST, source, run)
    whole = accuracy_of_base(run, source)
    assert sought == pytest.approx([0.72 * whole, 0.85 * whole, whole])


def accuracy_of_base(run: Run, source: Source) -> float:
    from teddy.models.zoo import build_network

    network = build_network(POST.network, source.task)
    network.load_state_dict(run.read_tensors("pool/base.safetensors"))
    return accuracy(network, source.train, source.preprocessing)


def test_a_curve_to_follow_that_is_no_pool_is_an_error(source: Source, run: Run, tmp_path: Path):
    from teddy.errors import TeddyError

    with pytest.raises(TeddyError, match="no finished pool"):
        build_pool(change(POST, follow=str(tmp_path / "none")), source, run)


def test_in_half_precision_members_are_computed_with_silent_channels_and_kept_without(source: Source, run: Run):
    short = {"training": {"epochs": 1, "batch_size": 24}, "pruning": {"members": 1}}
    settings = PoolSettings.model_validate({**POST.model_dump(), "network": "resnet18", **short})
    plain, run.engine = run.engine, replace(run.engine, half=True)
    pool = build_pool(settings, source, run)
    narrow_ones = read_teachers(run.folder, source.task, plain)
    images = source.preprocessing.normalise(source.test.pixels)
    for member, teacher, narrow in zip(members(run), pool.teachers, narrow_ones, strict=True):
        assert member["widths"] is not None
        assert narrow.network.conv1.weight.shape[0] == member["widths"]["conv1"] == 52
        assert teacher.network.conv1.weight.shape[0] == 64
        assert [len(means) for means in teacher.means] == [layer.num_features for layer in batch_norms(teacher.network)]
        assert teacher.class_means[-1].shape == (2, teacher.network.fc.in_features)
        torch.testing.assert_close(teacher.network(images), narrow.network(images), rtol=1e-4, atol=1e-4)
