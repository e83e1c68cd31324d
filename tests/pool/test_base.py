"""The user's weights: every form that is taken, and one line for every one that is not."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Shown
from safetensors.torch import save_file
from torch import Tensor, nn

from teddy.data.source import Source, Task, open_source
from teddy.errors import TeddyError
from teddy.models.zoo import build_network
from teddy.pool.base import load_base, read_weights

CPU = torch.device("cpu")
NETWORK = "convnet-d2-w4-bn"
DIGITS = Task(10, 1, 16)
State = dict[str, Tensor]


def state(name: str = NETWORK, task: Task = DIGITS) -> State:
    torch.manual_seed(0)
    return build_network(name, task).state_dict()


def save_pth(tree: object, path: Path) -> Path:
    torch.save(tree, path)
    return path


def save_safe(tensors: State, path: Path, about: dict[str, str] | None = None) -> Path:
    save_file(tensors, path, about)
    return path


FORMS: dict[str, Callable[[Path], Path]] = {
    "safetensors": lambda folder: save_safe(state(), folder / "w.safetensors"),
    "pth": lambda folder: save_pth(state(), folder / "w.pth"),
    "the old pth": lambda folder: (torch.save(state(), folder / "w.pth", _use_new_zipfile_serialization=False),
                                   folder / "w.pth")[1],
    "a checkpoint": lambda folder: save_pth({"epoch": 3, "state_dict": state()}, folder / "w.pt"),
    "a checkpoint of another habit": lambda folder: save_pth({"model": state(), "args": {"lr": 0.1}}, folder / "w.bin"),
    "data parallel": lambda folder: save_pth({f"module.{k}": v for k, v in state().items()}, folder / "w.pth"),
    "compiled": lambda folder: save_pth({f"_orig_mod.{k}": v for k, v in state().items()}, folder / "w.pth"),
    "without counters": lambda folder: save_pth(
        {k: v for k, v in state().items() if not k.endswith("num_batches_tracked")}, folder / "w.pth"
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_taken_in_the_forms_people_have(form: str, tmp_path: Path):
    network = load_base(NETWORK, FORMS[form](tmp_path), open_source("digits"), CPU)
    assert torch.equal(network.state_dict()["classifier.weight"], state()["classifier.weight"])


class Evil:
    """Unpickled, it would make a file."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


def half_of(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def text(path: Path) -> Path:
    path.write_text("weights")
    return path


def pickled(path: Path, protocol: int = 2) -> Path:
    path.write_bytes(pickle.dumps({"weights": Evil()}, protocol))
    return path


MISTAKES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no such file": (lambda folder: folder / "none.pth", "no such file"),
    "a folder": (lambda folder: folder, "no such file"),
    "another architecture": (
        lambda folder: save_safe(state("mobilenet_v2", Task(10, 1, 32)), folder / "w.safetensors"),
        "not of network 'convnet-d2-w4-bn': it lacks 'features.0.weight' and 13 more, it has 'classifier.1.bias' and",
    ),
    "a deeper one": (
        lambda folder: save_pth(state("convnet-d3-w4-bn"), folder / "w.pth"),
        "it has 'features.8.weight' and 6 more; name its own by pool.network",
    ),
    "a wider one": (
        lambda folder: save_pth(state("convnet-d2-w6-bn"), folder / "w.pth"),
        "'features.0.weight' is [6, 1, 3, 3], and [4, 1, 3, 3] in network 'convnet-d2-w4-bn'",
    ),
    "another number of classes": (
        lambda folder: save_safe(state(task=Task(1000, 1, 16)), folder / "w.safetensors"),
        "knows 1000 classes, and the data has 10",
    ),
    "a pickle with code in it": (lambda folder: pickled(folder / "w.pth"), "holds code beside weights, which is not"),
    "a newer pickle with code in it": (lambda folder: pickled(folder / "w.pth", 5), "not readable as plain weights"),
    "a checkpoint with code in it": (
        lambda folder: save_pth({"state_dict": state(), "hook": Evil()}, folder / "w.pth"),
        "holds code beside weights, which is not run",
    ),
    "a whole network": (
        lambda folder: save_pth(nn.Linear(2, 2), folder / "w.pth"), "save network.state_dict() alone",
    ),
    "half a safetensors": (
        lambda folder: half_of(save_safe(state(), folder / "w.safetensors")), "not readable as safetensors",
    ),
    "half a pth": (lambda folder: half_of(save_pth(state(), folder / "w.pth")), "it may be cut off"),
    "half an old pth": (lambda folder: half_of(FORMS["the old pth"](folder)), "it may be cut off"),
    "an empty pth": (lambda folder: save_pth({}, folder / "w.pth"), "holds no weights by name"),
    "a list": (lambda folder: save_pth([torch.zeros(2)], folder / "w.pth"), "holds a list"),
    "text": (lambda folder: text(folder / "w.pth"), "it may be cut off"),
    "text named safetensors": (lambda folder: text(folder / "w.safetensors"), "not readable as safetensors"),
    "numbers that went wrong": (
        lambda folder: save_pth(state() | {"classifier.bias": torch.full((10,), torch.nan)}, folder / "w.pth"),
        "'classifier.bias' is not finite",
    ),
    "other classes": (
        lambda folder: save_safe(state(), folder / "w.safetensors", {"classes": json.dumps([*"abcdefghij"])}),
        "'0' of the data is not among its 10 classes",
    ),
    "the same classes in another order": (
        lambda folder: save_pth(
            {"state_dict": state(), "class_to_idx": {str(k): 9 - k for k in range(10)}}, folder / "w.pth"
        ),
        "class 0 is '9' there and '0' in the data; give the weights' order by --set data.class_order=FILE",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_file_is_one_line_and_nothing_is_made(
    mistake: str, teddy: Callable[..., Shown], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    make, message = MISTAKES[mistake]
    shown = teddy("pool", "digits", "--network", NETWORK, "--weights", make(tmp_path), "--out", tmp_path / "out")
    lines = shown.err.splitlines()
    assert shown.code == 2
    assert lines[-1].startswith("error: pool.weights ")
    assert message in lines[-1]
    assert not [line for line in lines[:-1] if "Traceback" in line or "error" in line]
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "executed").exists()


def test_a_stem_that_does_not_fit_names_the_network_that_does(tmp_path: Path):
    task = Task(2, 3, 32)
    weights = save_pth(state("torchvision/resnet18", task), tmp_path / "w.pth")
    source = make_source(task)
    with pytest.raises(
        TeddyError, match=r"'conv1.weight' is \[64, 3, 7, 7\].*'torchvision/resnet18' keeps its own stem"
    ):
        load_base("resnet18", weights, source, CPU)
    assert load_base("torchvision/resnet18", weights, source, CPU).conv1.kernel_size == (7, 7)


def make_source(task: Task) -> Source:
    from teddy.data.preprocessing import Preprocessing
    from teddy.data.source import Images

    pixels = torch.randint(0, 255, (8, task.channels, task.image_size, task.image_size)).to(torch.uint8)
    images = Images(pixels, torch.arange(2).repeat(4))
    return Source(
        "two", ("a", "b"), images, images, task.channels, task.image_size, Preprocessing((0.5,) * 3, (0.2,) * 3), "two"
    )


class Sure(nn.Module):
    """Knows the two-class source, in one order or the other."""

    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self.last = nn.Linear(64, 2, bias=False)
        right = torch.tensor([0.0, 1.0]).repeat_interleave(4).repeat(8) / 32
        self.last.weight.data = torch.stack([right, -right] if swapped else [-right, right])

    def forward(self, images: Tensor) -> Tensor:
        return self.last(images.flatten(1))


@pytest.mark.parametrize("swapped", [False, True])
def test_an_order_that_no_name_tells_is_seen_in_the_data(
    swapped: bool, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("teddy.pool.base.build_network", lambda *_: Sure(swapped))
    weights = save_pth(Sure(swapped).state_dict(), tmp_path / "w.pth")
    if swapped:
        with pytest.raises(TeddyError, match=r"another order, e\.g\. takes 'left' for class 1; .*data.class_order"):
            load_base("sure", weights, source, CPU)
    else:
        load_base("sure", weights, source, CPU)


@pytest.mark.parametrize("key", ["classes", "class_names", "label_names"])
def test_classes_are_found_wherever_files_name_them(key: str, tmp_path: Path):
    names = [f"class {k}" for k in range(10)]
    assert read_weights(save_pth({"state_dict": state(), key: names}, tmp_path / "w.pth")).classes == names
    about = {key: json.dumps(names)}
    assert read_weights(save_safe(state(), tmp_path / "w.safetensors", about)).classes == names
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "config.json").write_text(json.dumps({key: names}))
    assert read_weights(save_safe(state(), beside / "w.safetensors")).classes == names
    assert read_weights(save_pth(state(), tmp_path / "plain.pth")).classes is None
