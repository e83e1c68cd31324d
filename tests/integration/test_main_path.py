"""The whole path on digits, small: what it leaves, that it repeats itself, that it goes on where it was."""

import json
import re
from pathlib import Path

import pytest
import torch
from conftest import QUICK
from PIL import Image
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

import teddy
from teddy import evaluation
from teddy.data.augment import Change
from teddy.files import write_checked
from teddy.students import ROWS
from teddy.synthesis import wave

VARIANTS = {
    "paper": {},
    "class-wise": {"method.statistics": "class-wise", "method.initial": "real"},
    "both at every layer": {"method.statistics": "both", "method.class_wise_layers": "every"},
    "class means of images that are drawn": {
        "method.statistics": "class-wise", "method.targets": "drawn", "method.real_images": 3,
        "method.map_weight": 0.3, "method.variance_weight": 1.0, "method.readout_weight": 5.0,
        "pool.class_means": False, "pool.network": "convnet-d2-w4-bn",
    },
    "in turn, redrawn": {"method.turns": "one", "method.redraw": True},
    "one of DSA's changes a batch": {
        "relabel.augment": {
            "colour": [1.0, 2.0, 0.5], "cutout": 0.5, "flip": 0.5, "scale": [0.8, 1.2], "rotate": 15, "shift": 2,
            "one_of": True, "cutmix": 0,
        }
    },
    "from mosaics": {"method.initial": "real", "method.tiles": 2},
    "half of the real images stay": {"method.initial": "real", "method.kept": 0.5},
    "from typical images, mixed in again": {"method.initial": "typical", "method.residual": 0.5},
    "labels by the batch's statistics, stored": {"relabel.statistics": "batch", "relabel.labels": "stored"},
    "one converged teacher": {"method.name": "sre2l", "method.teachers": 1},
    "several per class": {"method.images_per_class": 2, "method.classes_per_group": 5},
    "weak teachers label first": {"relabel.at_once": 1},
    "the same, stored": {"relabel.at_once": 1, "relabel.labels": "stored"},
    "probabilities of one teacher": {"relabel.average": "probabilities", "relabel.teachers": 1},
    "logits, hard share, average of weights": {
        "evaluation.loss": "mse", "evaluation.hard_share": 0.025, "evaluation.training.ema": 0.9,
        "evaluation.training.cosine_slowed": 2.0,
    },
}  # fmt: skip


def distill(out: Path, ipc: int = 2, **settings: object) -> teddy.Outcome:
    return teddy.distill("digits", ipc=ipc, out=out, settings=QUICK | settings, console=Console(quiet=True))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> teddy.Outcome:
    return distill(tmp_path_factory.mktemp("runs") / "first")


def artefacts(run: Path) -> dict[str, bytes]:
    folders = (run / "pool", run / "synthesis", run / "distilled")
    return {str(path.relative_to(run)): path.read_bytes() for f in folders for path in f.rglob("*") if path.is_file()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_goes_the_whole_way(variant: str, tmp_path: Path):
    outcome = distill(tmp_path / "run", **VARIANTS[variant])
    assert set(outcome.results["convnet-d1-w4-bn"]) == set(ROWS)
    assert outcome.report.exists()
    assert len(teddy.load(outcome.folder)) == 20


def test_images_that_are_kept_are_real_and_the_others_are_not(tmp_path: Path):
    def pixels(name: str, **settings: object) -> Tensor:
        real = {"method.initial": "real", "method.learning_rate": 0.5}
        return teddy.load(distill(tmp_path / name, ipc=3, **real, **settings).folder).images.pixels.view(10, 3, -1)

    real = pixels("real", **{"method.name": "random"})
    some = pixels("some", **{"method.kept": 0.67})
    assert (some[:, 1:] == real[:, 1:]).all()
    assert (some[:, 0] != real[:, 0]).any(1).all()


@pytest.mark.parametrize("method", ["teddy", "random"])
def test_the_same_seed_gives_the_same_bytes_and_another_others(method: str, tmp_path: Path):
    def run(name: str, seed: int) -> dict[str, bytes]:
        settings = QUICK | {"seed": seed}
        folder = tmp_path / name
        teddy.distill("digits", ipc=1, out=folder, method=method, settings=settings, console=Console(quiet=True))
        return artefacts(folder)

    first, second, other = run("first", 3), run("second", 3), run("other", 4)
    assert first == second
    assert len([name for name in first if name.endswith(".png")]) == 10
    assert first["distilled/images/0/00000.png"] != other["distilled/images/0/00000.png"]
    assert first["distilled/labels.safetensors"] != other["distilled/labels.safetensors"]


def test_the_resolved_configuration_repeats_the_run(outcome: teddy.Outcome, tmp_path: Path):
    again = teddy.distill(recipe=outcome.folder / "config.yaml", out=tmp_path / "again", console=Console(quiet=True))
    assert artefacts(again.folder) == artefacts(outcome.folder)
    assert again.results == outcome.results


@pytest.mark.parametrize(("ipc", "told"), [(1, "recipe digits/teddy_ipc1"), (7, "recipe digits/teddy_ipc10")])
def test_the_recipe_that_was_chosen_is_told(ipc: int, told: str, tmp_path: Path):
    log = (distill(tmp_path / "run", ipc=ipc).folder / "log.txt").read_text()
    assert f"digits: 1,438 + 359 images, resident; {told}\n" in log


def test_images_on_disk_are_what_is_loaded(outcome: teddy.Outcome):
    distilled = teddy.load(outcome.folder)
    assert distilled.classes == tuple("0123456789")
    for label, name in enumerate(distilled.classes):
        for number in range(2):
            path = outcome.folder / "distilled" / "images" / name / f"{number:05d}.png"
            with Image.open(path) as image:
                assert (image.mode, image.size) == ("L", (16, 16))
                assert list(image.tobytes()) == distilled.images.pixels[2 * label + number].flatten().tolist()
    assert distilled.images.labels.tolist() == [label for label in range(10) for _ in range(2)]


def test_the_set_is_a_data_set_with_soft_labels(outcome: teddy.Outcome):
    distilled = teddy.load(outcome.folder, temperature=2.0)
    image, label = distilled[3]
    assert image.shape == (1, 16, 16)
    torch.testing.assert_close(image, distilled.preprocessing.normalise(distilled.images.pixels[3]))
    torch.testing.assert_close(label, (distilled.logits[3] / 2).softmax(0))
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 10))
    for images, labels in DataLoader(distilled, batch_size=8, shuffle=True):
        F.cross_entropy(network(images), labels).backward()
    assert len(teddy.load(outcome.folder / "distilled")) == 20


def test_labels_are_the_pools_mean(outcome: teddy.Outcome):
    from teddy.data.source import open_source
    from teddy.models.zoo import build_network
    from teddy.run import existing_run

    distilled = teddy.load(outcome.folder)
    images = torch.stack([distilled[row][0] for row in range(20)])
    expected = torch.zeros(20, 10)
    with existing_run(outcome.folder, Console(quiet=True)) as (run, _):
        members = run.read_json("pool/pool.json")["members"]
        assert [member["epoch"] for member in members] == [1, 2, 3]
        for member in members:
            network = build_network("convnet-d1-w4-bn", open_source("digits").task).eval()
            weights = run.read_tensors(f"pool/{member['name']}.safetensors")
            network.load_state_dict({k: v for k, v in weights.items() if not k.startswith("teddy.")})
            with torch.no_grad():
                expected += network(images) / 3
    torch.testing.assert_close(distilled.logits, expected, atol=1e-5, rtol=1e-5)


def test_a_run_that_is_complete_is_not_made_again(outcome: teddy.Outcome):
    written = {path: path.stat().st_mtime_ns for path in (outcome.folder / "pool").iterdir()}
    again = distill(outcome.folder)
    assert again.results == outcome.results
    assert written == {path: path.stat().st_mtime_ns for path in (outcome.folder / "pool").iterdir()}


def test_an_interrupted_run_ends_with_the_same_bytes(
    outcome: teddy.Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    original, trained = evaluation.train_students, []

    def die_at_the_third(*given: object, **more: object) -> object:
        trained.append(1)
        if len(trained) == 3:
            raise KeyboardInterrupt
        return original(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluation, "train_students", die_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        distill(tmp_path / "run")
    assert not (tmp_path / "run" / "manifest.json").exists()
    again = distill(tmp_path / "run")
    assert artefacts(again.folder) == artefacts(outcome.folder)
    assert again.results == outcome.results
    assert len(trained) == 3 + 9 - 2  # nine students in all; the two that were done stay done


@pytest.mark.parametrize("damaged", [False, True])
def test_interrupted_synthesis_goes_on_with_the_next_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
):
    settings = {"method.classes_per_group": 4}  # three groups for each of two indices
    whole = distill(tmp_path / "whole", **settings)
    original, stepped = wave.apply_change, []

    def die_in_the_fourth(images: torch.Tensor, change: Change) -> torch.Tensor:
        stepped.append(1)
        if len(stepped) == 3 * 3 + 2:
            raise KeyboardInterrupt
        return original(images, change)

    monkeypatch.setattr(wave, "apply_change", die_in_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        distill(tmp_path / "run", **settings)
    blocks = sorted((tmp_path / "run" / "synthesis" / "blocks").iterdir())
    assert len(blocks) == 3
    if damaged:
        blocks[1].write_bytes(blocks[1].read_bytes()[:-5])
    again = distill(tmp_path / "run", **settings)
    assert artefacts(again.folder) == artefacts(whole.folder)
    assert again.results == whole.results
    assert len(stepped) == 3 * 3 + 2 + (3 + damaged) * 3
    assert not (tmp_path / "run" / "synthesis" / "blocks").exists()


def test_further_students_join_the_table(outcome: teddy.Outcome):
    more = teddy.evaluate(outcome.folder, networks=["convnet-d2-w4-bn"], seeds=1, console=Console(quiet=True))
    assert set(more.results) == {"convnet-d1-w4-bn", "convnet-d2-w4-bn"}
    assert list(more.results["convnet-d2-w4-bn"]["distilled"]) == ["0"]
    assert more.results["convnet-d1-w4-bn"] == outcome.results["convnet-d1-w4-bn"]


def test_the_report_holds_everything_in_itself(outcome: teddy.Outcome):
    page = teddy.write_report(outcome.folder, console=Console(quiet=True)).read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 10
    assert page.count("<svg") >= 4
    for row in ROWS:
        assert f"<td>{row}</td>" in page
    assert "iterations: 3\n" in page
    assert f"teddy {teddy.__version__}" in page
    outside = [
        address for address in re.findall(r"(?:src|href)=\"([^\"]+)\"", page) if not address.startswith(("data:", "#"))
    ]
    assert outside == []


def test_the_manifest_is_there_and_right(outcome: teddy.Outcome):
    manifest = json.loads((outcome.folder / "manifest.json").read_text())
    assert {"report.html", "config.yaml", "distilled/dataset.json", "pool/pool.json"} <= set(manifest["sha256"])


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_folder_of_ones_own_images(mode: str, tmp_path: Path):
    generator = torch.Generator().manual_seed(0)
    for label, name in enumerate(("dark ones", "светлые")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(8):
            channels = 3 if mode == "RGB" else 1
            pixels = torch.randint(0, 100, (12, 12, channels), generator=generator) + 150 * label
            array = pixels.to(torch.uint8).squeeze(2) if channels == 1 else pixels.to(torch.uint8)
            Image.fromarray(array.numpy()).save(tmp_path / "photos" / name / f"{number}.png")
    outcome = teddy.distill(
        tmp_path / "photos", ipc=2, out=tmp_path / "run", settings=QUICK, console=Console(quiet=True)
    )
    distilled = teddy.load(outcome.folder)
    assert distilled.classes == ("dark ones", "светлые")
    assert distilled.images.pixels.shape == (4, 3 if mode == "RGB" else 1, 12, 12)
    assert (outcome.folder / "distilled" / "images" / "светлые" / "00001.png").exists()


def test_the_readmes_python_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    full = teddy.distill

    def quick(*given: object, settings: dict[str, object], **named: object) -> teddy.Outcome:
        return full(*given, settings=QUICK | settings, console=Console(quiet=True), **named)  # type: ignore[arg-type]

    monkeypatch.setattr(teddy, "distill", quick, raising=False)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code, names)
    assert len(names["distilled"]) == 10  # type: ignore[arg-type]


def test_the_full_data_can_be_left_out(tmp_path: Path):
    outcome = distill(tmp_path / "run", **{"evaluation.full_data_seeds": 0})
    rows = outcome.results["convnet-d1-w4-bn"]
    assert [row for row in ROWS if not rows[row]] == ["full data"]
    assert "full data" not in re.findall(r"<td>(.*?)</td>", outcome.report.read_text())


def test_what_a_kill_has_left_of_a_stage_that_was_done_is_swept_up(tmp_path: Path):
    folder = distill(tmp_path / "run").folder
    before = artefacts(folder)
    pieces = [
        "pool/progress.json", "synthesis/blocks/000000.safetensors", "synthesis/waves/000000.safetensors",
        "relabel/plain/000000.safetensors", "evaluation/training/x.safetensors",
    ]  # fmt: skip
    for name in pieces:
        write_checked(folder, name, b"{}")
    distill(folder)
    assert [name for name in pieces if (folder / name).parent.exists() and (folder / name).exists()] == []
    assert not (folder / "synthesis" / "blocks").exists()
    assert not (folder / "relabel").exists()
    assert artefacts(folder) == before


def test_the_labels_of_images_as_they_are_do_not_depend_on_those_beside_them(tmp_path: Path, outcome: teddy.Outcome):
    by_batch = distill(tmp_path / "run", **{"relabel.statistics": "batch"}).folder
    plain, other = ((folder / "distilled" / "labels.safetensors").read_bytes() for folder in (outcome.folder, by_batch))
    assert plain == other
    rows = json.loads((by_batch / "evaluation" / "results.json").read_text())["convnet-d1-w4-bn"]
    assert rows["distilled"] != outcome.results["convnet-d1-w4-bn"]["distilled"]
    assert rows["distilled, hard labels"] == outcome.results["convnet-d1-w4-bn"]["distilled, hard labels"]
