"""The base network: trained here, or the user's own weights, which are checked before anything is built on them."""

import hashlib
import json
import pickle
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from teddy.data.images import Images, in_order
from teddy.data.source import Source
from teddy.errors import TeddyError
from teddy.models.layers import classifier
from teddy.models.zoo import RESIDUAL, TORCHVISION, build_network
from teddy.pool.store import STATISTICS
from teddy.pool.training import training_sample
from teddy.training import evaluating

NESTED = ("state_dict", "model_state_dict", "model", "network")  # where checkpoints keep the weights
WRAPPERS = ("module.", "_orig_mod.")  # what DataParallel and compile put before each name
CLASS_KEYS = ("classes", "class_names", "label_names", "class_to_idx")


class Weights(NamedTuple):
    """A weights file: tensors by name, and the classes it names, if it does."""

    tensors: dict[str, Tensor]
    classes: list[str] | None


def load_base(name: str, weights: Path, source: Source, device: torch.device) -> nn.Module:
    """The network with the user's weights, on the device; a file that does not fit is an error that says in what."""
    file = read_weights(weights)
    network = build_network(name, source.task)
    _check_shapes(network, name, weights, file.tensors, len(source.classes))
    network.load_state_dict(file.tensors, strict=False)
    if file.classes is not None and list(source.classes) != file.classes:
        raise _other_classes(weights, file.classes, source)
    network.to(device)
    _check_order(network, weights, source, device)
    return network


def digest(path: Path) -> str:
    """What tells the file from another."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_weights(path: Path) -> Weights:
    """Safetensors, or what torch.save wrote, of which nothing is run."""
    if not path.is_file():
        raise TeddyError(f"pool.weights {path}: no such file")
    tree, about = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    classes = _classes({**tree, **about}) or _classes(_read_json(path.with_name("config.json")))
    for key in NESTED:
        tree = tree[key] if isinstance(tree.get(key), Mapping) else tree
    tensors = {_bare(name): value for name, value in tree.items() if isinstance(value, Tensor)}
    if not tensors:
        raise TeddyError(f"pool.weights {path}: holds no weights by name; save network.state_dict()")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise TeddyError(f"pool.weights {path}: '{name}' is not finite; the training that made it went wrong")
    return Weights({name: value for name, value in tensors.items() if not name.startswith(STATISTICS)}, classes)


def _read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, no mapping
    except (SafetensorError, OSError) as error:
        raise TeddyError(f"pool.weights {path}: not readable as safetensors ({error}); copy it again") from None
    try:
        about = {key: json.loads(text) for key, text in metadata.items() if text[:1] in "[{"}
    except json.JSONDecodeError:
        about = {}
    return tensors, {**about, **about.get("teddy", {})}


def _read_pickle(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with warnings.catch_warnings(action="ignore"):  # of old forms of pickle
            tree = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "global" in str(error).lower():
            raise TeddyError(
                f"pool.weights {path}: holds code beside weights, which is not run; save network.state_dict() alone"
            ) from None
        raise _unreadable(path) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError, zipfile.BadZipFile):
        raise _unreadable(path) from None
    if not isinstance(tree, Mapping):
        raise TeddyError(f"pool.weights {path}: holds a {type(tree).__name__}; save network.state_dict()")
    return dict(tree), {}


def _unreadable(path: Path) -> TeddyError:
    return TeddyError(
        f"pool.weights {path}: not readable as plain weights, it may be cut off; "
        "copy it again, or save network.state_dict() alone"
    )


def _read_json(path: Path) -> dict[str, Any]:
    """What lies beside weights from the Hugging Face hub."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _classes(about: Mapping[str, Any]) -> list[str] | None:
    for key in CLASS_KEYS:
        named = about.get(key)
        if isinstance(named, Mapping) and all(isinstance(number, int) for number in named.values()):
            return sorted(named, key=lambda name: named[name])
        if isinstance(named, list | tuple) and named and all(isinstance(name, str) for name in named):
            return list(named)
    return None


def _bare(name: str) -> str:
    for prefix in WRAPPERS:
        name = name.removeprefix(prefix)
    return name


def _check_shapes(network: nn.Module, name: str, path: Path, tensors: dict[str, Tensor], num_classes: int) -> None:
    own = network.state_dict()
    lacking = [key for key in own if key not in tensors and not key.endswith("num_batches_tracked")]
    extra = [key for key in tensors if key not in own]
    if lacking or extra:
        differences = ", ".join([*_first("lacks", lacking), *_first("has", extra)])
        raise TeddyError(f"pool.weights {path}: not of network '{name}': {differences}; name its own by pool.network")
    head = next(prefix for prefix, layer in network.named_modules() if layer is classifier(network))
    if f"{head}.weight" in own and len(tensors[f"{head}.weight"]) != num_classes:
        raise TeddyError(
            f"pool.weights {path}: knows {len(tensors[f'{head}.weight'])} classes, and the data has {num_classes}; "
            "give weights trained on these classes"
        )
    for key, tensor in own.items():
        if key in tensors and tensors[key].shape != tensor.shape:
            theirs, ours = list(tensors[key].shape), list(tensor.shape)
            fix = f"network '{TORCHVISION}{name}' keeps its own stem" if RESIDUAL.fullmatch(name) else "they differ"
            raise TeddyError(f"pool.weights {path}: '{key}' is {theirs}, and {ours} in network '{name}'; {fix}")


def _first(verb: str, names: list[str]) -> Iterator[str]:
    if names:
        yield f"it {verb} '{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _other_classes(path: Path, theirs: list[str], source: Source) -> TeddyError:
    ours = list(source.classes)
    if sorted(theirs) == sorted(ours):
        place = next(row for row, pair in enumerate(zip(theirs, ours, strict=True)) if pair[0] != pair[1])
        return TeddyError(
            f"pool.weights {path}: class {place} is '{theirs[place]}' there and '{ours[place]}' in the data; "
            "give the weights' order by --set data.class_order=FILE, a name a line"
        )
    missing = sorted({*ours} - {*theirs})
    what = f"'{missing[0]}' of the data is not among its" if missing else "the data has fewer than its"
    return TeddyError(f"pool.weights {path}: {what} {len(theirs)} classes; give weights trained on these classes")


def _check_order(network: nn.Module, path: Path, source: Source, device: torch.device) -> None:
    """Where the file names no classes, the data tells: weights that know another order are right under it only."""
    confusion = _confusion(network, source, training_sample(source, device))
    rows, columns = linear_sum_assignment(confusion.numpy(), maximize=True)
    right, right_elsewhere = int(confusion.trace()), int(confusion[rows, columns].sum())
    if right_elsewhere > max(2 * right, int(confusion.sum()) / 2):
        row = next(row for row, column in zip(rows, columns, strict=True) if row != column)
        raise TeddyError(
            f"pool.weights {path}: knows the classes in another order, e.g. takes '{source.classes[row]}' for class "
            f"{columns[row]}; give its order by --set data.class_order=FILE, a name a line"
        )


@torch.inference_mode()
def _confusion(network: nn.Module, source: Source, images: Images) -> Tensor:
    """How often class i is taken for class j [K, K]."""
    num_classes = len(source.classes)
    counts = torch.zeros(num_classes * num_classes, dtype=torch.long)
    with evaluating(network):
        for part in in_order(images, 250):
            guesses = network(source.preprocessing.normalise(part.pixels)).argmax(1)
            counts += torch.bincount((part.labels * num_classes + guesses).cpu(), minlength=len(counts))
    return counts.view(num_classes, num_classes)
