"""Both loaders give the same images in the same order, whatever the number of workers."""

from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from teddy.data import survey
from teddy.data.augment import draw_change
from teddy.data.images import Images
from teddy.data.loaders import Batch, Loader
from teddy.data.source import Source, choose_form, open_source
from teddy.data.streamed import StreamedImages
from teddy.errors import TeddyError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    noise = np.random.default_rng(0)
    for name in ("cat", "dog", "owl"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(9):
            pixels = noise.integers(0, 256, (10, 14, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def batches(source: Source, epoch: int = 0) -> list[Batch]:
    loader = Loader(
        source.train, source.preprocessing, source.task, batch_size=5, seed=3,
        change=partial(draw_change, crop=(0.3, 1.0), flip=0.5), cutmix_alpha=1.0,
    )  # fmt: skip
    return list(loader.epoch(epoch))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_streamed_batches_are_the_resident_ones(photos: Path, workers: int):
    resident = open_source(str(photos), image_size=8, loader="resident")
    streamed = open_source(str(photos), image_size=8, loader="streamed", workers=workers)
    assert (resident.form, streamed.form) == ("resident", "streamed")
    assert resident.preprocessing == streamed.preprocessing
    for epoch in range(2):
        for ours, theirs in zip(batches(resident, epoch), batches(streamed, epoch), strict=True):
            assert torch.equal(ours.images, theirs.images)
            assert torch.equal(ours.targets, theirs.targets)


def test_a_pass_that_was_left_in_the_middle_does_not_disturb_the_next(photos: Path):
    streamed = open_source(str(photos), image_size=8, loader="streamed", workers=2)
    parts = list(torch.arange(len(streamed.train)).split(3))
    whole = [part.pixels for part in streamed.train.batches(parts)]
    next(iter(streamed.train.batches(parts)))
    again = [part.pixels for part in streamed.train.batches(parts)]
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))


def test_taking_some_gives_those(photos: Path):
    resident = open_source(str(photos), image_size=8, loader="resident")
    streamed = open_source(str(photos), image_size=8, loader="streamed")
    rows = torch.tensor([5, 0, 7])
    assert torch.equal(resident.train.take(rows).pixels, streamed.train.take(rows).pixels)
    draws = [source.draw(2, torch.Generator().manual_seed(0)) for source in (resident, streamed)]
    assert torch.equal(draws[0].pixels, draws[1].pixels)
    assert torch.equal(draws[0].labels, draws[1].labels)


@pytest.mark.parametrize("form", ["resident", "streamed"])
def test_unreadable_images_are_named_or_left_out(photos: Path, form: str):
    (photos / "cat" / "3.png").write_bytes((photos / "cat" / "3.png").read_bytes()[:-40])  # its header is whole
    (photos / "dog" / "1.png").write_text("no image at all")
    options = {"image_size": 8, "loader": form, "test_share": 0.3}
    with pytest.raises(
        TeddyError, match=r"cat/3\.png, .*dog/1\.png: not readable as an image \(2 of 2\d\).*--skip-bad 2"
    ):
        open_source(str(photos), skip_bad=1, **options)
    source = open_source(str(photos), skip_bad=2, **options)
    assert len(source.train) + len(source.test) == 25
    assert sorted(Path(place).name for place in source.skipped) == ["1.png", "3.png"]
    assert source.describe()["skipped"]
    assert sum(len(batch.images) for batch in batches(source)) == len(source.train)


def test_a_file_that_breaks_later_is_named(photos: Path):
    source = open_source(str(photos), image_size=8, loader="streamed")
    assert isinstance(source.train, StreamedImages)
    victim = source.train.listing.place(0)
    Path(victim).write_text("gone bad")
    with pytest.raises(TeddyError, match="was readable before and is no longer"):
        batches(source)


def test_what_was_seen_of_a_streamed_source_is_remembered_until_it_changes(
    photos: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    looked = []
    original = survey.survey
    monkeypatch.setattr(
        "teddy.data.source.survey", lambda *given, **named: looked.append(1) or original(*given, **named)
    )
    first = open_source(str(photos), image_size=8, loader="streamed")
    assert len(looked) == 2  # training and test part
    again = open_source(str(photos), image_size=8, loader="streamed")
    assert len(looked) == 2
    assert again.preprocessing == first.preprocessing
    assert again.fingerprint == first.fingerprint
    for path in (cache / "teddy" / "statistics").iterdir():
        path.write_text("{")
    open_source(str(photos), image_size=8, loader="streamed")
    assert len(looked) == 4
    Image.new("RGB", (30, 30)).save(photos / "cat" / "0.png")
    changed = open_source(str(photos), image_size=8, loader="streamed")
    assert changed.fingerprint != first.fingerprint


def test_the_form_follows_from_size_and_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("teddy.data.source.free_memory", lambda _: 10_000_000)
    assert choose_form(100, 3, 100, None) == "resident"
    assert choose_form(200, 3, 100, None) == "streamed"


def test_statistics_are_those_of_the_training_pixels(photos: Path):
    source = open_source(str(photos), image_size=10, loader="resident")
    assert isinstance(source.train, Images)
    scaled = source.train.pixels.double() / 255
    torch.testing.assert_close(
        torch.tensor(source.preprocessing.mean).double(), scaled.mean((0, 2, 3)), atol=1e-6, rtol=0
    )
    assert source.sizes == (((14, 10), 27),)


@pytest.mark.parametrize(("parts", "workers"), [(12, 3), (13, 4), (5, 0), (2, 8)])
def test_each_worker_looks_at_neighbours(parts: int, workers: int):
    order = [int(part) for part in survey.in_runs(list(torch.arange(parts).split(1)), workers)]
    assert sorted(order) == list(range(parts))
    taken = [order[worker :: max(workers, 1)] for worker in range(max(workers, 1))]  # in turn, as they do
    assert all(after == before + 1 for run in taken for before, after in pairwise(run))


@pytest.mark.parametrize("workers", [0, 2])
def test_every_image_is_kept_at_its_place_whoever_looks_at_it(
    photos: Path, workers: int, monkeypatch: pytest.MonkeyPatch
):
    whole = open_source(str(photos), loader="resident", workers=0)
    monkeypatch.setattr(survey, "BATCH", 4)  # several parts for each worker
    assert isinstance(whole.train, Images)
    in_parts = open_source(str(photos), loader="resident", workers=workers)
    assert isinstance(in_parts.train, Images)
    assert torch.equal(in_parts.train.pixels, whole.train.pixels)
    assert in_parts.preprocessing == whole.preprocessing
    assert in_parts.sizes == whole.sizes
