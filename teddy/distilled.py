"""The distilled set as a folder that explains itself: PNG images in class folders, soft labels in safetensors, and one
JSON with class names, preprocessing and how it was made.

Shapes: N images, C channels, H × W pixels, K classes.
"""

import json
import re
import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor
from torch.utils.data import Dataset

from teddy.config import Config
from teddy.data.preprocessing import Preprocessing
from teddy.data.source import Images
from teddy.errors import TeddyError
from teddy.run import versions, write_whole

FORMAT = 1
DESCRIPTION = "dataset.json"
LABELS = "labels.safetensors"


class DistilledSet(Dataset[tuple[Tensor, Tensor]]):
    """A small set of images with soft labels.

    An item is a normalised image [C, H, W] and its label [K] as probabilities at `temperature`, which
    `torch.nn.functional.cross_entropy` takes as they are.
    """

    def __init__(
        self,
        images: Images,
        logits: Tensor,
        classes: tuple[str, ...],
        preprocessing: Preprocessing,
        temperature: float = 1.0,
    ) -> None:
        self.images = images
        self.logits = logits
        self.classes = classes
        self.preprocessing = preprocessing
        self.temperature = temperature

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        image = self.preprocessing.normalise(self.images.pixels[row])
        return image, (self.logits[row] / self.temperature).softmax(0)


def write_distilled(
    folder: Path, config: Config, images: Images, logits: Tensor, classes: tuple[str, ...], preprocessing: Preprocessing
) -> None:
    """Write the folder beside its place, and rename it when it is whole."""
    beside = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    directories = class_directories(classes)
    files = []
    for row, label in enumerate(images.labels.tolist()):
        name = f"images/{directories[label]}/{row % config.ipc:05d}.png"
        write_whole(beside / name, encode_png(images.pixels[row]))
        files.append(name)
    write_whole(beside / LABELS, save_tensors({"labels": images.labels.clone(), "logits": logits.contiguous()}))
    description = {
        "format": FORMAT,
        "source": Path(config.data.source).name,
        "method": config.method.name,
        "ipc": config.ipc,
        "classes": list(classes),
        "shape": list(images.pixels.shape[1:]),
        "mean": preprocessing.mean,
        "std": preprocessing.std,
        "files": files,
        "versions": versions(),
        "config": config.model_dump(mode="json"),
    }
    write_whole(beside / DESCRIPTION, (json.dumps(description, indent=1, ensure_ascii=False) + "\n").encode())
    beside.replace(folder)


def read_distilled(folder: Path, temperature: float = 1.0) -> DistilledSet:
    """A folder that `write_distilled` made."""
    if not (folder / DESCRIPTION).is_file():
        raise TeddyError(f"{folder}: not a distilled set (no {DESCRIPTION} in it)")
    description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    tensors = load_tensors((folder / LABELS).read_bytes())
    pixels = [_decode_png(folder / name) for name in description["files"]]
    return DistilledSet(
        Images(torch.stack(pixels), tensors["labels"]),
        tensors["logits"],
        tuple(description["classes"]),
        Preprocessing(tuple(description["mean"]), tuple(description["std"])),
        temperature,
    )


def class_directories(classes: tuple[str, ...]) -> list[str]:
    """A directory name per class: its own where every file system takes it, else numbered and cleaned."""
    safe = re.compile(r"[^\x00-\x1f/\\:*?\"<>|.][^\x00-\x1f/\\:*?\"<>|]*")
    unique = len({name.casefold() for name in classes}) == len(classes)
    if unique and all(safe.fullmatch(name) for name in classes):
        return list(classes)
    cleaned = [re.sub(r"[^\w-]+", "_", name) for name in classes]
    return [f"{label:05d}_{name}" for label, name in enumerate(cleaned)]


def encode_png(pixels: Tensor) -> bytes:
    """uint8 [C, H, W] → PNG, without loss."""
    buffer = BytesIO()
    array = pixels.permute(1, 2, 0).numpy()
    Image.fromarray(array.squeeze(2) if len(pixels) == 1 else array).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _decode_png(path: Path) -> Tensor:
    with Image.open(path) as image:
        pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1)
