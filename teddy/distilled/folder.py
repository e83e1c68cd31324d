"""The distilled set as a folder that explains itself: PNG images in class folders, soft labels in safetensors, and one
JSON with class names, preprocessing, checksums and how it was made.

Reading one runs no code of its own and writes nothing.
Shapes: N images, C channels, H × W pixels, K classes.
"""

import json
import math
import re
import shutil
import struct
import warnings
from collections import Counter
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from PIL import Image
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from teddy.config import Config, Whole
from teddy.data.images import Images
from teddy.data.preprocessing import Preprocessing
from teddy.data.source import Task
from teddy.distilled.dataset import DistilledSet
from teddy.distilled.description import (
    DAMAGED,
    DESCRIPTION,
    FORMAT,
    LABELS,
    Description,
    Stated,
    StatedFile,
    StatedImage,
    StatedPreprocessing,
    as_json,
    first_mistake,
    locate_member,
    read_description,
    read_member,
    sha256,
)
from teddy.errors import TeddyError
from teddy.files import write_whole
from teddy.run import versions
from teddy.stored_labels import FILE as STORED
from teddy.stored_labels import read_stored

FOLDER = "distilled"  # where a run keeps its set
MOST_HEADER_BYTES = 2**16  # of safetensors
MOST_STORED_BYTES = 2**35  # ImageNet-1K at IPC 50, all classes for 300 epochs
MOST_SPARE_BYTES = 2**20  # what a PNG may have beside its pixels


def write_distilled(
    folder: Path,
    config: Config,
    images: Images,
    logits: Tensor,
    classes: tuple[str, ...],
    preprocessing: Preprocessing,
    *,
    statistics: Mapping[str, Any] | None = None,
    extra: Mapping[str, bytes] | None = None,
) -> None:
    """Write the folder beside its place, and rename it when it is whole.

    `statistics` are the source's: class counts, sizes and the like. `extra` are further files by their names.
    """
    _, channels, height, width = images.pixels.shape
    assert height == width
    beside = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        stated = []
        for row, name in enumerate(image_names(images.labels, class_directories(classes))):
            png = encode_png(images.pixels[row])
            write_whole(beside / "images" / name, png)
            stated.append(StatedImage(name=f"images/{name}", label=int(images.labels[row]), sha256=sha256(png)))
        tensors = {"labels": images.labels.contiguous(), "logits": logits.float().contiguous()}
        others = {LABELS: save_tensors(tensors), **(extra or {})}
        for name, content in others.items():
            write_whole(beside / name, content)
        description = Description(
            format=FORMAT,
            source=Path(config.data.source).name,
            method=config.method.name,
            ipc=config.ipc,
            classes=classes,
            preprocessing=StatedPreprocessing(
                image_size=height, channels=channels, mean=preprocessing.mean, std=preprocessing.std
            ),
            images=tuple(stated),
            other_files=tuple(StatedFile(name=name, sha256=sha256(content)) for name, content in others.items()),
            statistics=dict(statistics or {}),
            versions=versions(),
            config=_without_paths(config),
        )
        write_whole(beside / DESCRIPTION, as_json(description.model_dump(mode="json")))
        beside.replace(folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def find_distilled(folder: Path) -> Path:
    """The set's own folder, given that or the run's."""
    return folder if (folder / DESCRIPTION).is_file() else folder / FOLDER


def read_distilled(folder: Path, temperature: float = 1.0) -> DistilledSet:
    """A folder that `write_distilled` made, or says that it did: nothing in it is trusted."""
    if not (temperature > 0 and math.isfinite(temperature)):
        raise TeddyError(f"temperature: is {temperature}; give a number above 0")
    description = read_description(folder)
    labels, logits = _read_labels(folder, description)
    stated = description.preprocessing
    pixels = torch.empty(len(labels), stated.channels, stated.image_size, stated.image_size, dtype=torch.uint8)
    for row, image in enumerate(description.images):
        content = read_member(folder, description, image.name, 2 * description.image_bytes + MOST_SPARE_BYTES)
        pixels[row] = _decode_png(folder / image.name, content, stated)
    stored = _read_stored(folder, description)
    preprocessing = Preprocessing(stated.mean, stated.std)
    return DistilledSet(Images(pixels, labels), logits, description.classes, preprocessing, temperature, stored)


def class_directories(classes: tuple[str, ...]) -> list[str]:
    """A directory name per class: its own where every file system takes it, else numbered and cleaned."""
    safe = re.compile(r"[^\x00-\x1f/\\:*?\"<>|.][^\x00-\x1f/\\:*?\"<>|]*")
    unique = len({name.casefold() for name in classes}) == len(classes)
    if unique and all(safe.fullmatch(name) and len(name.encode()) < 256 for name in classes):
        return list(classes)
    return numbered_directories(classes)


def numbered_directories(classes: tuple[str, ...]) -> list[str]:
    """Directory names that sort as the classes do."""
    cleaned = [re.sub(r"[^\w-]+", "_", name)[:60] for name in classes]
    return [f"{label:05d}_{name}" for label, name in enumerate(cleaned)]


def image_names(labels: Tensor, directories: list[str]) -> list[str]:
    """`<directory>/<number in its class>.png` for each image."""
    counts: Counter[int] = Counter()
    names = []
    for label in labels.tolist():
        names.append(f"{directories[label]}/{counts[label]:05d}.png")
        counts[label] += 1
    return names


def encode_png(pixels: Tensor) -> bytes:
    """uint8 [C, H, W] → PNG, without loss."""
    buffer = BytesIO()
    array = pixels.permute(1, 2, 0).numpy()
    Image.fromarray(array.squeeze(2) if len(pixels) == 1 else array).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


class _TensorHeader(Stated):
    dtype: str
    shape: Annotated[tuple[Whole, ...], Field(max_length=8)]
    data_offsets: tuple[Whole, Whole]


class _LabelsHeader(Stated):
    labels: _TensorHeader
    logits: _TensorHeader


def _read_labels(folder: Path, description: Description) -> tuple[Tensor, Tensor]:
    num_images, num_classes = len(description.images), len(description.classes)
    expected = {"labels": ("I64", (num_images,), 8), "logits": ("F32", (num_images, num_classes), 4)}
    data_bytes = sum(size * math.prod(shape) for _, shape, size in expected.values())
    content = read_member(folder, description, LABELS, 8 + MOST_HEADER_BYTES + data_bytes)
    path = folder / LABELS
    try:
        header_bytes = int.from_bytes(content[:8], "little")
        if len(content) != 8 + header_bytes + data_bytes:
            raise TeddyError(f"{path}: has not the size of {num_images} × {num_classes} labels; {DAMAGED}")
        header = _LabelsHeader.model_validate_json(content[8 : 8 + header_bytes])
        for key, (dtype, shape, size) in expected.items():
            told: _TensorHeader = getattr(header, key)
            start, end = told.data_offsets
            if (told.dtype, told.shape, end - start) != (dtype, shape, size * math.prod(shape)):
                raise TeddyError(f"{path}: '{key}' is not {dtype} of shape {list(shape)}; {DAMAGED}")
        tensors = load_tensors(content)
    except ValidationError as error:
        raise TeddyError(f"{path}: header: {first_mistake(error)}; {DAMAGED}") from None
    except SafetensorError:
        raise TeddyError(f"{path}: not readable as safetensors; {DAMAGED}") from None
    labels, logits = tensors["labels"], tensors["logits"]
    if labels.tolist() != [image.label for image in description.images]:
        raise TeddyError(f"{path}: has other labels than {DESCRIPTION}; {DAMAGED}")
    if not logits.isfinite().all():
        raise TeddyError(f"{path}: has logits that are no finite numbers; {DAMAGED}")
    return labels, logits


def _read_stored(folder: Path, description: Description) -> dict[str, Tensor] | None:
    if STORED not in description.checksums:
        return None
    stated = description.preprocessing
    task = Task(len(description.classes), stated.channels, stated.image_size)
    path = locate_member(folder, STORED)
    # A file can claim any length at no cost; this one is read whole only if its own header agrees.
    if path.stat().st_size > MOST_STORED_BYTES or path.stat().st_size != _announced_bytes(path):
        raise TeddyError(f"{folder / STORED}: has not the size that its header gives; {DAMAGED}")
    try:
        content = read_member(folder, description, STORED, MOST_STORED_BYTES)
        return read_stored(content, len(description.images), task)
    except ValueError as error:
        raise TeddyError(f"{folder / STORED}: {error}; {DAMAGED}") from None


def _announced_bytes(path: Path) -> int | None:
    """The size of a safetensors file as its header has it; None if there is no such header."""
    try:
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(header_bytes, MOST_HEADER_BYTES)).decode())
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        return 8 + header_bytes + max(int(end) for end in ends)
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
        return None


def _decode_png(path: Path, content: bytes, stated: StatedPreprocessing) -> Tensor:
    side, mode = stated.image_size, "L" if stated.channels == 1 else "RGB"
    # Signature, the first chunk's length and type, width, height, bits, colour type.
    header = struct.pack(">8sI4sIIBB", b"\x89PNG\r\n\x1a\n", 13, b"IHDR", side, side, 8, 0 if mode == "L" else 2)
    if not content.startswith(header):
        raise TeddyError(f"{path}: is no PNG image of {side} × {side} pixels in mode {mode}; {DAMAGED}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with Image.open(BytesIO(content), formats=("PNG",)) as image:
                if (image.size, image.mode) != ((side, side), mode):  # a second header may have changed them
                    raise ValueError
                pixels = torch.from_numpy(np.array(image))
    except Exception:  # whatever Pillow makes of a stranger's bytes, it is the file that is wrong
        raise TeddyError(f"{path}: not readable as a PNG image; {DAMAGED}") from None
    return pixels[None] if mode == "L" else pixels.permute(2, 0, 1)


def _without_paths(config: Config) -> dict[str, Any]:
    """The configuration as it may be published: where a source lay on somebody's disk is nobody's business."""
    tree = config.model_dump(mode="json")
    for key in ("source", "class_order"):
        if tree["data"][key]:
            tree["data"][key] = Path(tree["data"][key]).name
    return tree
