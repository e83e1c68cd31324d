"""A distilled set in the forms other tools read, each with a card that says what it is and what it is worth."""

import errno
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from jinja2 import Environment, StrictUndefined
from pyarrow import parquet
from safetensors.torch import save as save_tensors

from teddy.distilled import (
    FOLDER,
    LABELS,
    Description,
    DistilledSet,
    as_json,
    class_directories,
    find_distilled,
    image_names,
    numbered_directories,
    read_description,
    read_distilled,
    read_member,
    sha256,
)
from teddy.errors import TeddyError, unknown
from teddy.evaluation import RESULTS
from teddy.files import write_whole
from teddy.report.table import result_lines
from teddy.run import NO_SPACE, NOT_ALLOWED

CARD = "README.md"
PARQUET = "data/train-00000-of-00001.parquet"
TENSORS = "distilled.safetensors"
MOST_PNG_BYTES = 2**27
SIZE_CATEGORIES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M"}
# Words that make `datasets` take a folder for a part of the data, and where they count as words.
SPLIT_WORD = re.compile(
    r"(?:^|[-._ 0-9])(?:train|training|validation|valid|dev|val|test|testing|eval|evaluation)(?:$|[-._ 0-9])"
)


@dataclass(frozen=True)
class Loaded:
    """A set, with everything its folder says about it."""

    place: Path
    description: Description
    distilled: DistilledSet

    def png(self, row: int) -> bytes:
        """An image's file, as it is."""
        return read_member(self.place, self.description, self.description.images[row].name, MOST_PNG_BYTES)


@dataclass(frozen=True)
class Form:
    """A form of export: its files, what its card says about them, what `datasets` is to know."""

    files: Callable[[Loaded], Iterator[tuple[str, bytes]]]
    usage: str
    soft_labels: str
    front_matter: Callable[[Loaded], dict[str, Any]]


def export(run: Path, format: str, out: Path) -> Path:  # noqa: A002
    """Write the set of a run folder, or of a folder of its own, to the new folder `out` in one of `FORMATS`."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    place = find_distilled(run)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TeddyError(f"--out {out}: holds files already; name a new folder")
    if out.resolve().is_relative_to(place.resolve()):
        raise TeddyError(f"--out {out}: lies inside the set that is exported; name a folder elsewhere")
    loaded = Loaded(place, read_description(place), read_distilled(place))
    tables = _result_tables(place)
    with _whole_folder(out) as beside:
        num_bytes = 0
        for name, content in FORMATS[format].files(loaded):
            write_whole(beside / name, content)
            num_bytes += len(content)
        write_whole(beside / CARD, make_card(loaded, FORMATS[format], tables, num_bytes).encode())
    return out


def make_card(loaded: Loaded, form: Form, tables: list[dict[str, Any]], num_bytes: int) -> str:
    """The card: front matter that Hugging Face reads, text that people read."""
    description = loaded.description
    stated = description.preprocessing
    front_matter = {
        "license": "unknown",
        "pretty_name": f"{description.source}, distilled to {description.ipc} images per class",
        "task_categories": ["image-classification"],
        "size_categories": [_size_category(len(description.images))],
        "tags": ["dataset-distillation"],
        **form.front_matter(loaded),
    }
    command = ["teddy", "distill", description.source, "--ipc", str(description.ipc), "--method", description.method]
    settings = _settings_in_short(description.config)
    template = (resources.files("teddy") / "card.md.j2").read_text(encoding="utf-8")
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(template).render(
        front_matter=_as_yaml(front_matter).replace("license: unknown", "license: unknown  # fill in", 1),
        title=_plain(front_matter["pretty_name"]),
        source=_plain(description.source),
        method=_plain(description.method),
        ipc=description.ipc,
        network=_plain(_inner(description.config, "pool", "network") or "not stated"),
        teddy_version=_plain(description.versions.get("teddy", "of an unknown version")),
        command=" ".join(_plain(shlex.quote(part)) for part in command),
        settings=_as_yaml(settings) if settings else "",
        num_images=len(description.images),
        num_bytes=num_bytes,
        classes=description.classes,
        class_list=json.dumps(description.classes, ensure_ascii=False),
        size=stated.image_size,
        channels=stated.channels,
        mean=list(stated.mean),
        std=list(stated.std),
        interpolation=stated.interpolation,
        tables=tables,
        usage=form.usage,
        soft_labels=form.soft_labels,
    )


def folder_names(classes: tuple[str, ...]) -> list[str]:
    """A folder per class, such that sorted by name they are in the set's order, and none is taken for a split."""
    names = class_directories(classes)
    misread = [bool(SPLIT_WORD.search(name)) for name in names]
    if names == sorted(names) and not any(misread) and not any(name.startswith("_") for name in names):
        return names
    names = numbered_directories(classes)
    return [f"{label:05d}" if SPLIT_WORD.search(name) else name for label, name in enumerate(names)]


def _imagefolder_files(loaded: Loaded) -> Iterator[tuple[str, bytes]]:
    labels = loaded.distilled.labels
    for row, name in enumerate(image_names(labels, folder_names(loaded.description.classes))):
        yield f"train/{name}", loaded.png(row)
    order = labels.argsort(stable=True)  # in which readers list the files
    yield LABELS, save_tensors({"labels": labels[order], "logits": loaded.distilled.logits[order]})


def _imagefolder_front_matter(_: Loaded) -> dict[str, Any]:
    return {"configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "train/**"}]}]}


def _huggingface_files(loaded: Loaded) -> Iterator[tuple[str, bytes]]:
    # `Sequence` is what every version of `datasets` reads.
    soft_label = {"feature": {"dtype": "float32", "_type": "Value"}, "_type": "Sequence"}
    class_label = {"names": list(loaded.description.classes), "_type": "ClassLabel"}
    features = {"image": {"_type": "Image"}, "label": class_label, "soft_label": soft_label}
    image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = [("image", image_type), ("label", pa.int64()), ("soft_label", pa.list_(pa.float32()))]
    schema = pa.schema(columns, metadata={"huggingface": json.dumps({"info": {"features": features}})})
    labels = loaded.distilled.labels
    directories = folder_names(loaded.description.classes)
    paths = [name.replace("/", "_") for name in image_names(labels, directories)]
    rows = {
        "image": [{"bytes": loaded.png(row), "path": path} for row, path in enumerate(paths)],
        "label": labels.tolist(),
        "soft_label": list(loaded.distilled.logits.softmax(1).numpy()),
    }
    buffer = BytesIO()
    # Small row groups, so that a viewer need not load all images for the first.
    parquet.write_table(pa.table(rows, schema=schema), buffer, row_group_size=1000)
    yield PARQUET, buffer.getvalue()


def _huggingface_front_matter(loaded: Loaded) -> dict[str, Any]:
    names = {str(label): name for label, name in enumerate(loaded.description.classes)}
    features = [
        {"name": "image", "dtype": "image"},
        {"name": "label", "dtype": {"class_label": {"names": names}}},
        {"name": "soft_label", "sequence": "float32"},
    ]
    return {
        "dataset_info": {"features": features},
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*"}]}],
    }


def _tensor_files(loaded: Loaded) -> Iterator[tuple[str, bytes]]:
    images = loaded.distilled.images
    tensors = {"images": images.pixels, "labels": images.labels, "logits": loaded.distilled.logits}
    content = save_tensors(tensors)
    yield TENSORS, content
    told = loaded.description.model_dump(mode="json", exclude={"images", "other_files"})
    shapes = {name: [str(tensor.dtype).removeprefix("torch."), *tensor.shape] for name, tensor in tensors.items()}
    yield "description.json", as_json({**told, "tensors": shapes, "sha256": {TENSORS: sha256(content)}})


def _no_front_matter(_: Loaded) -> dict[str, Any]:
    return {}


FORMATS = {
    "imagefolder": Form(
        _imagefolder_files,
        "from torchvision.datasets import ImageFolder\n\n"
        'distilled = ImageFolder("FOLDER/train")  # or datasets.load_dataset("imagefolder", data_dir="FOLDER")\n',
        f"`{LABELS}` holds the teachers' logits, a row for each image in the order in which these list them.",
        _imagefolder_front_matter,
    ),
    "huggingface": Form(
        _huggingface_files,
        'from datasets import load_dataset\n\ndistilled = load_dataset("FOLDER", split="train")\n',
        "`soft_label` is the mean prediction of the teachers as probabilities at temperature 1; the softmax of its "
        "logarithm divided by T gives that at temperature T.",
        _huggingface_front_matter,
    ),
    "tensors": Form(
        _tensor_files,
        "from safetensors.torch import load_file\n\n"
        f'distilled = load_file("FOLDER/{TENSORS}")  # images uint8 [N, C, H, W], labels [N], logits [N, K]\n',
        "`logits` are the teachers' mean; their softmax gives soft labels. `description.json` has all settings.",
        _no_front_matter,
    ),
}


@contextmanager
def _whole_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `out` when it is whole and leaves nothing behind when it does not."""
    out = out.absolute()
    beside = out.with_name(f".{out.name}.part")
    made = [parent for parent in out.parents if not parent.exists()]
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        yield beside
        if out.exists():
            out.rmdir()
        beside.replace(out)
    except BaseException as error:
        shutil.rmtree(beside, ignore_errors=True)
        for parent in made:
            if parent.exists():
                parent.rmdir()
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise TeddyError(f"--out {out}: no space left on the device; nothing was left behind") from None
        if isinstance(error, OSError) and error.errno in NOT_ALLOWED | {errno.ENOTDIR, errno.EEXIST}:
            raise TeddyError(f"--out {out}: cannot be written ({error.strerror}); name another folder") from None
        raise


def _result_tables(place: Path) -> list[dict[str, Any]]:
    """The run's results, where the set lies in a run that was evaluated."""
    path = place.absolute().parent / RESULTS
    if place.absolute().name != FOLDER or not path.is_file():
        return []
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        return [{"network": _plain(network), "lines": result_lines(results, network)} for network in results]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise TeddyError(f"{path}: not readable as results; 'teddy evaluate' on the run makes them anew") from None


def _settings_in_short(config: Mapping[str, Any]) -> dict[str, Any]:
    """The single values of each section that shaped the set; whole sections of it, such as augmentation, left out."""
    sections = [config, *(config.get(name) for name in ("pool", "method", "relabel"))]
    short = {}
    for prefix, tree in zip(("", "pool.", "method.", "relabel."), sections, strict=True):
        for key, value in tree.items() if isinstance(tree, dict) else ():
            if not isinstance(value, dict | list):
                short[_plain(f"{prefix}{key}")] = _plain(value) if isinstance(value, str) else value
    return short


def _inner(tree: Mapping[str, Any], section: str, key: str) -> Any:
    inner = tree.get(section)
    return inner.get(key) if isinstance(inner, dict) else None


def _size_category(num_images: int) -> str:
    return next((name for limit, name in SIZE_CATEGORIES.items() if num_images < limit), "n>1M")


def _as_yaml(tree: Any) -> str:
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=10**6)


def _plain(text: object) -> str:
    """A stranger's text on one line, with nothing that Markdown would make something of."""
    return re.sub(r"([|`<\[\]*])", r"\\\1", " ".join(str(text).split()))[:200]
