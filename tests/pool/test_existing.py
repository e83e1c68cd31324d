"""A pool on its own, shown, and used again by runs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from conftest import QUICK, Shown
from rich.console import Console

import teddy as library
from teddy.data.source import open_source
from teddy.pool.store import read_index
from teddy.report.members import distance

SETTINGS = {key: value for key, value in QUICK.items() if key.startswith("pool.")}
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.make_pool("digits", out=tmp_path_factory.mktemp("pools") / "own", settings=SETTINGS, console=QUIET)


@pytest.fixture(scope="module")
def outcome(pool: Path, tmp_path_factory: pytest.TempPathFactory) -> library.Outcome:
    rest = {key: value for key, value in QUICK.items() if not key.startswith("pool.")}
    out = tmp_path_factory.mktemp("runs") / "run"
    return library.distill("digits", ipc=1, out=out, pool=pool, settings=rest, console=QUIET)


def test_a_pool_on_its_own_is_whole(pool: Path):
    assert (pool / "manifest.json").exists()
    assert {"config.yaml", "source.json", "pool/pool.json", "pool/epoch-003.safetensors"} <= set(
        json.loads((pool / "manifest.json").read_text())["sha256"]
    )
    config = yaml.safe_load((pool / "config.yaml").read_text())
    assert set(config) == {"data", "seed", "device", "engine", "pool"}
    assert [member["name"] for member in read_index(pool)["members"]] == ["epoch-001", "epoch-002", "epoch-003"]


def test_a_run_with_a_pool_is_the_run_that_makes_it_itself(outcome: library.Outcome, tmp_path: Path):
    own = library.distill("digits", ipc=1, out=tmp_path / "own", settings=QUICK, console=QUIET)
    assert own.results == outcome.results
    for name in ("pool/epoch-002.safetensors", "synthesis/images.safetensors", "distilled/labels.safetensors"):
        assert (own.folder / name).read_bytes() == (outcome.folder / name).read_bytes()


def test_some_of_a_pool_are_a_pool(pool: Path, tmp_path: Path):
    rest = {key: value for key, value in QUICK.items() if not key.startswith("pool.")}
    some = {**rest, "pool.every": 2, "method.teachers": 1}
    run = library.distill("digits", ipc=1, out=tmp_path / "run", pool=pool, settings=some, console=QUIET)
    assert [member["name"] for member in read_index(run.folder)["members"]] == ["epoch-001", "epoch-003"]
    own = {**QUICK, "pool.every": 2, "method.teachers": 1}
    alone = library.distill("digits", ipc=1, out=tmp_path / "own", settings=own, console=QUIET)
    assert alone.results == run.results
    assert library.verify(run.folder) == []
    last = {**rest, "pool.first": 3, "method.teachers": 1}
    again = library.distill("digits", ipc=1, out=tmp_path / "again", pool=run.folder, settings=last, console=QUIET)
    assert [member["name"] for member in read_index(again.folder)["members"]] == ["epoch-003"]


def test_a_run_stays_whole_when_its_pool_goes(pool: Path, tmp_path: Path):
    copy = tmp_path / "pool"
    shutil.copytree(pool, copy)
    rest = {key: value for key, value in QUICK.items() if not key.startswith("pool.")}
    run = library.distill(pool=copy, ipc=1, out=tmp_path / "run", settings=rest, console=QUIET)  # its source too
    shutil.rmtree(copy)
    more = library.evaluate(run.folder, seeds=3, console=QUIET)
    assert len(more.results["convnet-d1-w4-bn"]["distilled"]) == 3
    assert library.verify(run.folder) == []


def test_the_resolved_configuration_says_how_the_pool_was_made(outcome: library.Outcome, pool: Path):
    settings = yaml.safe_load((outcome.folder / "config.yaml").read_text())["pool"]
    assert settings["folder"] == str(pool)
    assert (settings["network"], settings["last"]) == ("convnet-d1-w4-bn", 3)


def test_a_pool_is_shown_with_what_its_members_cost(pool: Path, teddy: Callable[..., Shown]):
    shown = teddy("pool", "--show", pool)
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0].split() == ["teacher", "epoch", "accuracy,", "%", "MMACs", "params,", "M", "MB"]
    name, epoch, score, macs, parameters, megabytes = lines[3].split()
    member = read_index(pool)["members"][2]
    file = pool / "pool" / "epoch-003.safetensors"
    assert (name, epoch, score) == ("epoch-003", "3", f"{member['accuracy']:.1f}")
    # at each of 16 · 16 positions: 4 outputs of a 3 × 3 convolution with bias, normalised; then the classifier
    assert float(macs) * 1e6 == pytest.approx(16 * 16 * 4 * (9 + 1 + 2) + 256 * 10, rel=0.2)
    assert member["parameters"] == 4 * 9 + 4 + 8 + 256 * 10 + 10
    assert float(parameters) == pytest.approx(member["parameters"] / 1e6, abs=0.01)
    assert member["bytes"] == file.stat().st_size
    assert float(megabytes) == pytest.approx(file.stat().st_size / 1e6, abs=0.06)


def test_pruned_members_are_shown_with_their_widths(teddy: Callable[..., Shown], tmp_path: Path):
    shown = teddy(
        "pool", "digits", "--out", tmp_path / "post", "--generation", "post", "--network", "convnet-d1-w8-bn",
        "--set", "pool.training.epochs=2", "--set", "pool.pruning.members=2",
    )  # fmt: skip
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert "widths" in lines[0]
    assert {line.split()[0] for line in lines[1:3]} == {"pruned-000", "pruned-001"}
    assert [line.split()[1] for line in lines[1:3]] == ["5", "5"]


def test_the_distance_to_a_student_is_shown(pool: Path, outcome: library.Outcome, teddy: Callable[..., Shown]):
    shown = teddy("pool", "--show", pool, "--student", outcome.folder)
    assert shown.code == 0
    assert "KL to the student" in shown.out
    distances = [float(line.split()[-1]) for line in shown.out.splitlines()[1:4]]
    assert all(value > 0 for value in distances)
    members = library.show_pool(pool, student=outcome.folder, console=QUIET)
    assert [round(member.distance, 3) for member in members] == distances


def test_the_distance_is_the_mean_divergence_by_naive_loops():
    source = open_source("digits")
    torch.manual_seed(0)
    teacher, student = (torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 10)) for _ in range(2))
    images = source.test[torch.arange(7)]
    expected = 0.0
    for image in source.preprocessing.normalise(images.pixels):
        p, q = (network(image[None]).detach().softmax(1)[0] for network in (teacher, student))
        expected += sum(float(p[k] * (p[k] / q[k]).log()) for k in range(10)) / 7
    assert distance(teacher, student, images, source.preprocessing) == pytest.approx(expected, rel=1e-5)
    assert distance(teacher, teacher, images, source.preprocessing) == pytest.approx(0, abs=1e-6)


def change_index(pool: Path, to: Path, **changes: object) -> Path:
    shutil.copytree(pool, to, ignore=shutil.ignore_patterns(".sums"))
    index = read_index(to) | changes
    (to / "pool" / "pool.json").write_text(json.dumps(index))
    return to


def without_member(pool: Path, to: Path) -> Path:
    shutil.copytree(pool, to)
    (to / "pool" / "epoch-002.safetensors").unlink()
    return to


MISTAKES: dict[str, tuple[Callable[[Path, Path], Path], list[str], str]] = {
    "no pool": (lambda _, to: to / "none", [], "no finished pool"),
    "classes in another order": (
        lambda pool, to: change_index(pool, to / "p", classes=list("1023456789")), [],
        "its teachers know '1', '0', '2', … (10 classes), and the data has '0', '1', '2', … (10 classes)",
    ),
    "another size": (
        lambda pool, to: change_index(pool, to / "p", shape=[1, 32, 32]), [],
        "its teachers see images of 1 × 32 × 32, and these are 1 × 16 × 16",
    ),
    "a member gone": (lambda pool, to: without_member(pool, to / "p"), [], "epoch-002.safetensors is missing"),
    "settings for a pool that is there": (
        lambda pool, _: pool, ["--set", "pool.bases=2"], "pool.bases: decides how a pool is made, and --pool",
    ),
    "a snapshot that it does not have": (
        lambda pool, _: pool, ["--set", "pool.first=0"], "has no snapshot after 0 epochs, but after 1, 2, 3; choose",
    ),
    "a choice among pruned members": (
        lambda pool, to: change_index(pool, to / "p", generation="post"), ["--set", "pool.every=2"],
        "pool.every: decides how a pool is made, and --pool",
    ),
    "more teachers than are chosen": (
        lambda pool, _: pool, ["--set", "pool.first=3", "--set", "method.teachers=2"],
        "method.teachers: draws 2 of a pool of 1",
    ),
    "more teachers than it has": (
        lambda pool, _: pool, ["--set", "method.teachers=4"], "method.teachers: draws 4 of a pool of 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_pool_that_does_not_fit_is_one_line(mistake: str, pool: Path, teddy: Callable[..., Shown], tmp_path: Path):
    make, arguments, message = MISTAKES[mistake]
    quick = [f"--set={key}={value}" for key, value in QUICK.items() if not key.startswith("pool.")]
    given = make(pool, tmp_path)
    shown = teddy("distill", "digits", "--ipc", 1, "--pool", given, "--out", tmp_path / "run", *quick, *arguments)
    assert shown.code == 2
    assert message in shown.err.splitlines()[-1]
    assert not list((tmp_path / "run").glob("*/*.json")) if (tmp_path / "run").exists() else True


COMMANDS = {
    "no folder": (["digits"], "--out is needed"),
    "no source": (["--out", "p"], "a source is needed"),
    "both": (["digits", "--show", "p"], "leave out SOURCE and --out"),
    "nothing there": (["--show", "p"], "p: no finished pool"),
    "an unknown generation": (["digits", "--out", "p", "--generation", "later"], "pool.generation: input should be"),
    "an unknown network": (["digits", "--out", "p", "--network", "timm/resnet81"], "unknown network 'timm/resnet81'"),
    "a key of something else": (["digits", "--out", "p", "--set", "method.teachers=2"], "unknown key 'method'"),
    "a target that is too large": (
        ["digits", "--out", "p", "--generation", "post", "--set", "pool.pruning.keep=1e12",
         "--set", "pool.training.epochs=1"],
        "pool.pruning.keep: 1e+12 macs are more than",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", COMMANDS)
def test_a_mistake_is_one_line(
    mistake: str, teddy: Callable[..., Shown], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    arguments, message = COMMANDS[mistake]
    shown = teddy("pool", *arguments)
    assert shown.code == 2
    assert message in shown.err.splitlines()[-1]


def test_a_pool_is_no_run(pool: Path, teddy: Callable[..., Shown]):
    shown = teddy("evaluate", pool)
    assert shown.code == 2
    assert "holds a pool and no run; 'teddy distill --pool" in shown.err
    shown = teddy("distill", "digits", "--ipc", 1, "--pool", pool, "--out", pool, "--overwrite")
    assert shown.code == 2
    assert "is the folder of --pool; name another" in shown.err
    assert read_index(pool)
