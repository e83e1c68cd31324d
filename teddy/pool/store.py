"""The pool in the run folder: a safetensors file per teacher, and an index written when all are there."""

from collections.abc import Callable, Sequence
from typing import TypedDict

from torch import Tensor, nn

from teddy.pool.pool import Pool, Teacher, freeze
from teddy.run import Run

INDEX = "pool/pool.json"
MEANS = "class_means."  # before the layer's number, in a teacher's file beside its weights


class Member(TypedDict):
    """A teacher's line in the index; the accuracy is on the test part, in per cent."""

    name: str
    epoch: int
    accuracy: float


def write_teacher(run: Run, name: str, network: nn.Module, class_means: Sequence[Tensor]) -> None:
    """One teacher's weights and class means."""
    means = {f"{MEANS}{layer:03d}": mean for layer, mean in enumerate(class_means)}
    run.write_tensors(f"pool/{name}.safetensors", network.state_dict() | means)


def write_index(run: Run, network: str, generation: str, classes: Sequence[str], members: Sequence[Member]) -> None:
    """The pool is complete; `classes` are in the order in which its teachers know them."""
    index = {"network": network, "generation": generation, "classes": list(classes), "members": list(members)}
    run.write_json(INDEX, index)


def read_members(run: Run) -> list[Member]:
    """The index, without the networks."""
    members: list[Member] = run.read_json(INDEX)["members"]
    return members


def read_pool(run: Run, new_network: Callable[[], nn.Module]) -> Pool:
    """All teachers, frozen, on the run's device."""
    teachers = []
    for member in read_members(run):
        tensors = run.read_tensors(f"pool/{member['name']}.safetensors")
        means = tuple(tensors.pop(key).to(run.device) for key in sorted(tensors) if key.startswith(MEANS))
        network = new_network()
        network.load_state_dict(tensors)
        teachers.append(
            Teacher(member["name"], member["epoch"], member["accuracy"], freeze(network.to(run.device)), means)
        )
    return Pool(tuple(teachers))
