"""The commands, and what a user's mistakes look like: one line, exit code 2, nothing left behind."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import QUICK_ARGUMENTS
from PIL import Image

from teddy import __version__, cli
from teddy.data.source import KINDS
from teddy.methods import METHODS
from teddy.recipes import shipped_recipes
from teddy.stopping import stop_if_asked

Teddy = Callable[..., tuple[int, str, str]]


def photos(root: Path, per_class: int = 6) -> Path:
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for number in range(per_class):
            Image.new("RGB", (10, 10), (number, 9, 9)).save(root / name / f"{number}.png")
    return root


def photos_with_text(root: Path) -> Path:
    photos(root)
    (root / "cat" / "bad.png").write_text("these are words")
    return root


def text_file(path: Path) -> Path:
    path.write_text("these are words")
    return path


def empty(path: Path) -> Path:
    path.mkdir()
    return path


def one_class(path: Path) -> Path:
    photos(path)
    for file in (path / "dog").iterdir():
        file.unlink()
    return path


MISTAKES = {
    "a source that is not there": (["nowhere/photos", "--ipc", 1], "source nowhere/photos: no such folder"),
    "a bundled source misspelt": (["digit", "--ipc", 1], "unknown source 'digit'; did you mean 'digits'"),
    "an empty source": ([empty, "--ipc", 1], "needs a folder of images for each of two classes or more, found none"),
    "an empty class": ([one_class, "--ipc", 1], "class folder 'dog' holds no images"),
    "a source that is a file": ([text_file, "--ipc", 1], "is a file; give the folder"),
    "a file that is no image": (
        [photos_with_text, "--ipc", 1],
        "bad.png: not readable as an image (1 of 13); mend or remove, or go on without by --skip-bad 1",
    ),
    "too few images": ([photos, "--ipc", 6], "class 'cat' has 5 training images and 6 are needed; lower --ipc to 5"),
    "too few images for mosaics": (
        [photos, "--ipc", 2, "--set", "method.initial=real", "--set", "method.tiles=2"],
        "method.tiles: needs 8 images of each class, and one has 5; lower it or --ipc",
    ),
    "a mosaic that does not fit": (
        ["digits", "--ipc", 1, "--set", "method.tiles=3"],
        "method.tiles: 3 does not divide images of 16 pixels a side",
    ),
    "maps without convolutions": (
        [
            "digits",
            "--ipc",
            1,
            "--set",
            "method.statistics=both",
            "--set",
            "method.targets=drawn",
            "--set",
            "method.map_weight=1",
            "--set",
            "pool.network=convnet-d1-w4-bn",
        ],
        "method.map_weight: pool.network 'convnet-d1-w4-bn' has no convolution but its first; set it to 0",
    ),
    "noise that is kept": (
        ["digits", "--ipc", 2, "--set", "method.initial=noise", "--set", "method.kept=0.5"],
        "method: kept: 0.5 of the images would stay noise; set initial to real or typical",
    ),
    "stored labels of coloured images": (
        ["digits", "--ipc", 1, "--set", "relabel.labels=stored", "--set", "relabel.augment.cutout=0.5"],
        "relabel: labels: stored labels know no colours and holes; leave labels online, or augment without",
    ),
    "an unknown method": (["digits", "--ipc", 1, "--method", "tedy"], "unknown method 'tedy'; did you mean 'teddy'?"),
    "an unknown method in a setting": (["digits", "--ipc", 1, "--set", "method.name=tedy"], "unknown method 'tedy'"),
    "an unknown network": (
        ["digits", "--ipc", 1, "--set", "pool.network=resnet81"],
        "unknown network 'resnet81'; did you mean 'resnet18'",
    ),
    "an unknown student": (["digits", "--ipc", 1, "--set", "evaluation.networks=[vgg]"], "unknown network 'vgg'"),
    "a teacher without normalisation": (
        ["digits", "--ipc", 1, "--set", "pool.network=squeezenet1_1", "--set", "data.image_size=32"],
        "pool.network 'squeezenet1_1': has no normalisation layers",
    ),
    "a network that is too deep": (
        ["digits", "--ipc", 1, "--set", "evaluation.networks=[alexnet]"],
        "network 'alexnet' does not take images of 16 × 16",
    ),
    "an unknown recipe": (
        ["digits", "--ipc", 1, "--recipe", "digits/teddy_ipc2"],
        "unknown recipe 'digits/teddy_ipc2'; did you mean 'digits/teddy_ipc1",
    ),
    "a recipe file that is not there": (["digits", "--ipc", 1, "--recipe", "my.yaml"], "recipe my.yaml: no such file"),
    "an unknown key": (
        ["digits", "--ipc", 1, "--set", "method.iteration=5"],
        "unknown key 'method.iteration'; did you mean 'method.iterations'",
    ),
    "a value of the wrong type": (
        ["digits", "--ipc", 1, "--set", "method.iterations=many"],
        "method.iterations: input should be a valid integer, not 'many'",
    ),
    "a setting without a value": (["digits", "--ipc", 1, "--set", "seed"], "--set seed: write key.path=value"),
    "IPC 0": (["digits", "--ipc", 0], "ipc: input should be greater than or equal to 1, not 0"),
    "a negative IPC": (["digits", "--ipc", -2], "ipc: input should be greater than or equal to 1, not -2"),
    "an IPC that is no number": (["digits", "--ipc", "ten"], "invalid value for '--ipc'"),
    "no IPC": (["digits"], "a source and --ipc are needed"),
    "no source": (["--ipc", 1], "a source and --ipc are needed"),
    "an unknown option": (["digits", "--ipc", 1, "--fast"], "no such option: --fast"),
    "a device that is not there": (["digits", "--ipc", 1, "--set", "device=mps"], "device 'mps': PyTorch finds none"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(mistake: str, teddy: Teddy, tmp_path: Path):
    arguments, message = MISTAKES[mistake]
    given = [argument(tmp_path / "photos") if callable(argument) else argument for argument in arguments]
    before = sorted(tmp_path.rglob("*"))
    code, out, err = teddy("distill", *given, "--out", tmp_path / "run")
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_out_is_one_line(teddy: Teddy):
    code, _, err = teddy("distill", "digits", "--ipc", 1)
    assert (code, err.count("\n")) == (2, 1)
    assert "missing option '--out'" in err


def test_another_configuration_is_refused_and_says_what_to_do(teddy: Teddy, tmp_path: Path):
    run = tmp_path / "run"
    assert teddy("distill", "digits", "--ipc", 1, "--out", run, *QUICK_ARGUMENTS)[0] == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    code, _, err = teddy("distill", "digits", "--ipc", 2, "--out", run, *QUICK_ARGUMENTS)
    assert code == 2
    assert "holds a run with another configuration (ipc was 1, now 2)" in err
    assert "--overwrite starts over" in err
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_a_folder_that_is_no_run_is_one_line(command: str, teddy: Teddy, tmp_path: Path):
    code, _, err = teddy(command, tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert "not a run folder" in err


@pytest.mark.parametrize(
    ("code", "message"),
    [(errno.EROFS, "cannot be written (Read-only file system)"), (errno.ENOSPC, "no space left on the device")],
)
def test_a_place_that_cannot_be_written_is_one_line(
    code: int, message: str, teddy: Teddy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.fsync", refuse)
    exit_code, _, err = teddy("distill", "digits", "--ipc", 1, "--out", tmp_path / "run", *QUICK_ARGUMENTS)
    assert (exit_code, err.count("\n")) == (2, 1)
    assert message in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("what", "names"),
    [("methods", METHODS), ("recipes", shipped_recipes()), ("sources", KINDS), ("models", ["resnet18", "convnet"])],
)
def test_lists_show_every_name(what: str, names: list[str], teddy: Teddy):
    code, out, _ = teddy("list", what)
    assert code == 0
    shown = {line.split()[0] for line in out.splitlines() if line and not line.startswith(" ")}
    assert set(names) <= shown


def test_an_unknown_list_names_the_known_ones(teddy: Teddy):
    code, _, err = teddy("list", "method")
    assert code == 2
    assert "did you mean 'methods'" in err


def test_the_version(teddy: Teddy):
    assert teddy("--version")[:2] == (0, f"teddy {__version__}\n")


@pytest.mark.parametrize("command", ["distill", "evaluate", "report", "list"])
def test_help_has_examples(command: str, teddy: Teddy):
    code, out, _ = teddy(command, "--help")
    assert code == 0
    assert f"  teddy {command} " in out
    assert "Example" in out


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_says_how_to_go_on(number: int, expected: int, teddy: Teddy, monkeypatch: pytest.MonkeyPatch):
    def interrupt(**_: object) -> None:
        os.kill(os.getpid(), number)
        stop_if_asked()
        stop_if_asked()

    monkeypatch.setattr(cli, "app", interrupt)
    code, _, err = teddy("distill", "digits")
    assert code == expected
    assert "the same command goes on" in err
    stop_if_asked()
    stop_if_asked()  # that was then


def test_help_does_not_wait_for_pytorch():
    script = "import sys, teddy.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    shown = subprocess.run([sys.executable, "-m", "teddy", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"teddy {__version__}\n"
