from collections import Counter
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from teddy import seeding
from teddy.config import PoolSettings, TeacherTrainingSettings, parse_config
from teddy.data.loaders import Loader
from teddy.data.source import Source
from teddy.models.convnet import ConvNet
from teddy.pool.build import build_pool
from teddy.pool.pool import Pool, Teacher, measure_class_means
from teddy.pool.store import read_members
from teddy.run import Run, new_run

SETTINGS = PoolSettings(
    network="convnet-d2-w4-bn",
    first_epoch=1,
    last_epoch=4,
    every=2,
    training=TeacherTrainingSettings(epochs=6, batch_size=8, learning_rate=0.01),
)


def pool_of(size: int) -> Pool:
    return Pool(tuple(Teacher(f"t{k}", k, 0.0, nn.Identity(), ()) for k in range(size)))


def test_teachers_are_drawn_without_repetition_and_all_alike():
    generator = seeding.stream(0, "draws")
    counts: Counter[str] = Counter()
    for _ in range(3000):
        drawn = [teacher.name for teacher in pool_of(6).draw(2, generator)]
        assert len(set(drawn)) == 2
        counts.update(["+".join(sorted(drawn))])
    assert len(counts) == 15  # every pair
    assert all(count == pytest.approx(200, abs=60) for count in counts.values())


@pytest.mark.parametrize(
    ("size", "count", "expected"), [(8, 8, [0, 1, 2, 3, 4, 5, 6, 7]), (8, 1, [7]), (8, 2, [3, 7]), (9, 4, [2, 4, 6, 8])]
)
def test_a_spread_ends_with_the_last(size: int, count: int, expected: list[int]):
    assert [teacher.epoch for teacher in pool_of(size).spread(count)] == expected


def test_class_means_by_naive_loops(source: Source):
    torch.manual_seed(0)
    network = ConvNet(depth=1, width=3, norm="bn", num_classes=2, channels=1, image_size=8).eval()
    before_norm, last = measure_class_means(network, source.train, source.preprocessing, 2)
    for label in range(2):
        images = source.preprocessing.normalise(source.train.pixels[source.train.labels == label])
        expected = network.features[0](images).mean((0, 2, 3))
        torch.testing.assert_close(before_norm[label], expected)
        torch.testing.assert_close(last[label], network.features(images).flatten(1).mean(0))


def test_prior_generation_caches_the_trajectory_and_goes_no_further(source: Source, run: Run):
    pool = build_pool(SETTINGS, source, run)
    assert [teacher.epoch for teacher in pool.teachers] == [1, 3, 4]
    weights = [teacher.network.state_dict()["classifier.weight"] for teacher in pool.teachers]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    for teacher in pool.teachers:
        assert not teacher.network.training
        assert not any(parameter.requires_grad for parameter in teacher.network.parameters())
        assert len(teacher.class_means) == 3
        assert teacher.network.state_dict()["features.1.num_batches_tracked"] == 3 * teacher.epoch
    assert sorted(path.name for path in (run.folder / "pool").iterdir()) == [
        "epoch-001.safetensors", "epoch-003.safetensors", "epoch-004.safetensors", "pool.json",
    ]  # fmt: skip


def test_training_ends_with_the_last_teacher_whatever_the_schedule(
    source: Source, run: Run, monkeypatch: pytest.MonkeyPatch
):
    epochs = []
    original = Loader.draws
    monkeypatch.setattr(Loader, "draws", lambda loader, epoch: epochs.append(epoch) or original(loader, epoch))
    build_pool(SETTINGS, source, run)
    assert SETTINGS.training.epochs == 6
    assert epochs == [0, 1, 2, 3]


def test_a_pool_that_is_there_is_read_bit_for_bit_and_not_trained_again(source: Source, run: Run):
    first = build_pool(SETTINGS, source, run)
    written = (run.folder / "pool" / "epoch-003.safetensors").stat().st_mtime_ns
    second = build_pool(SETTINGS, source, run)
    assert (run.folder / "pool" / "epoch-003.safetensors").stat().st_mtime_ns == written
    for a, b in zip(first.teachers, second.teachers, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.class_means, b.class_means, strict=True))
        states = a.network.state_dict(), b.network.state_dict()
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert [member["accuracy"] for member in read_members(run)] == [teacher.accuracy for teacher in first.teachers]


def test_the_seed_decides_the_pool(source: Source, tmp_path: Path, quiet: Console):
    weights = []
    for place, seed in enumerate((0, 0, 1)):
        config = parse_config({"data": {"source": "digits"}, "ipc": 1, "seed": seed})
        with new_run(tmp_path / str(place), config, bytes_needed=0, console=quiet) as run:
            pool = build_pool(SETTINGS, source, run)
        weights.append(pool.teachers[-1].network.state_dict()["classifier.weight"])
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_epoch_zero_is_the_untrained_network(source: Source, run: Run):
    settings = SETTINGS.model_copy(update={"first_epoch": 0})
    first = build_pool(settings, source, run).teachers[0]
    assert first.epoch == 0
    assert first.network.state_dict()["features.1.num_batches_tracked"] == 0
