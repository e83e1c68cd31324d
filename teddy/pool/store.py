"""The pool in a run folder: a safetensors file per teacher, and an index written when all are there."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch_pruning
from torch import Tensor, nn

from teddy.data.images import Images
from teddy.data.source import Source, Task
from teddy.engine import Engine
from teddy.errors import NumbersError, TeddyError
from teddy.files import read_checked, read_tensors
from teddy.models.padding import pad_channels, padded
from teddy.models.widths import fit_widths, output_widths
from teddy.models.zoo import build_network, example_images
from teddy.pool.measuring import Measured, measure, running_statistics
from teddy.pool.pool import Pool, Teacher, freeze
from teddy.run import Run
from teddy.training import accuracy, is_finite

FOLDER = "pool"
INDEX = f"{FOLDER}/pool.json"
PROGRESS = f"{FOLDER}/progress.json"  # members made so far, while the pool is not complete
STATISTICS = "teddy."  # before the names of what is measured, in a teacher's file beside its weights
KINDS = ("means", "variances", "class_means")


class Member(TypedDict):
    """A teacher's line in the index; accuracies are in per cent, on the test part and on a sample of the training part.

    `step` and `epoch` count what the base was trained as a prior member, or the member fine-tuned as a post one, then
    with the widths that pruning left and at `learning_rate`.
    """

    name: str
    accuracy: float
    train_accuracy: float
    step: int
    epoch: float
    learning_rate: float | None
    widths: dict[str, int] | None
    parameters: int
    macs: int
    bytes: int


class Index(TypedDict):
    """What the pool is: `classes` are in the order in which its teachers know them."""

    network: str
    generation: str
    reason: str
    base: dict[str, Any] | None
    classes: list[str]
    shape: list[int]
    mean: list[float]
    std: list[float]
    members: list[Member]


def write_member(
    run: Run,
    source: Source,
    network: nn.Module,
    sample: Images,
    *,
    network_name: str,
    name: str,
    step: int,
    epoch: float,
    class_means: bool,
    learning_rate: float | None = None,
    pruned: bool = False,
) -> Member:
    """Measure a teacher, on a `sample` of the training images too, and leave it in the run folder."""
    if not is_finite(network):
        raise NumbersError(
            f"pool: the weights of {network_name} are not finite after {step} steps ({name}); "
            "lower the learning rate of its training"
        )
    measured = measure(network, source, run.device, class_means=class_means)
    size = write_teacher(run, name, network, measured, {"network": network_name, "classes": list(source.classes)})
    macs, parameters = count_cost(network, source.task)
    return {
        "name": name,
        "accuracy": round(accuracy(network, source.test.to(run.device), source.preprocessing, run.engine), 3),
        "train_accuracy": round(accuracy(network, sample, source.preprocessing, run.engine), 3),
        "step": step,
        "epoch": round(epoch, 4),
        "learning_rate": learning_rate,
        "widths": output_widths(network) if pruned else None,
        "parameters": parameters,
        "macs": macs,
        "bytes": size,
    }


def write_teacher(run: Run, name: str, network: nn.Module, measured: Measured, about: Mapping[str, Any]) -> int:
    """One teacher's weights, and what was measured with it; gives the file's size."""
    statistics = {
        f"{STATISTICS}{kind}.{layer:03d}": tensor
        for kind in KINDS
        for layer, tensor in enumerate(getattr(measured, kind))
    }
    # A single key, since safetensors does not keep several in order and a file's bytes should not change.
    path = run.write_tensors(_file(name), network.state_dict() | statistics, {"teddy": json.dumps(about)})
    return path.stat().st_size


def count_cost(network: nn.Module, task: Task) -> tuple[int, int]:
    """Multiply-adds of one image, and parameters."""
    macs, parameters = torch_pruning.utils.count_ops_and_params(network, example_images(network, task, 1))
    return int(macs), int(parameters)


def note_members(run: Run, members: Sequence[Member]) -> None:
    """What is there so far, should the making be interrupted."""
    run.write_json(PROGRESS, {"members": list(members)})


def noted_members(run: Run) -> list[Member]:
    """The members that an interrupted making has left."""
    members: list[Member] = run.read_json(PROGRESS)["members"] if run.has(PROGRESS) else []
    return members


def write_index(run: Run, source: Source, members: Sequence[Member], **about: Any) -> None:
    """The pool is complete."""
    preprocessing = source.preprocessing
    index = about | {
        "classes": list(source.classes),
        "shape": [source.channels, source.image_size, source.image_size],
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "members": list(members),
    }
    run.write_json(INDEX, index)


def read_index(folder: Path) -> Index:
    """What the pool in a run folder is, without the networks."""
    try:
        index: Index = json.loads(read_checked(folder, INDEX) if (folder / INDEX).is_file() else "")
    except ValueError:
        raise TeddyError(f"{folder}: no finished pool (no readable {INDEX} in it); 'teddy pool' makes one") from None
    return index


def read_pool(run: Run, task: Task) -> Pool:
    """The run's teachers, frozen, on its device."""
    return Pool(tuple(read_teachers(run.folder, task, run.engine)))


def read_teachers(folder: Path, task: Task, engine: Engine) -> Iterator[Teacher]:
    """The teachers of the pool in a run folder, frozen."""
    index = read_index(folder)
    for member in index["members"]:
        tensors = read_tensors(folder, _file(member["name"]))
        yield _teacher(index["network"], member, tensors, task, engine)


def _teacher(name: str, member: Member, tensors: dict[str, Tensor], task: Task, engine: Engine) -> Teacher:
    statistics = {
        kind: tuple(tensors[key].to(engine.device) for key in sorted(tensors) if key.startswith(f"{STATISTICS}{kind}."))
        for kind in KINDS
    }
    weights = {key: tensor for key, tensor in tensors.items() if not key.startswith(STATISTICS)}
    network = build_network(name, task)
    if member["widths"]:
        fit_widths(network, weights)
    network.load_state_dict(weights)
    if member["widths"] and engine.half:
        network, narrow = padded(network.eval(), example_images(network, task, 2)), network
        if network is not narrow:
            statistics = {kind: tuple(map(pad_channels, tensors)) for kind, tensors in statistics.items()}
    freeze(engine.place(network))
    kept = running_statistics(network)
    return Teacher(
        member["name"],
        member["accuracy"],
        network,
        statistics["means"] or kept.means,
        statistics["variances"] or kept.variances,
        statistics["class_means"],
    )


def _file(name: str) -> str:
    return f"{FOLDER}/{name}.safetensors"
