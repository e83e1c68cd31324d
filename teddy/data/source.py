"""Real images, opened from wherever they are."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from teddy.data.digits import read_digits
from teddy.data.folder import read_folder
from teddy.data.preprocessing import Preprocessing, measure
from teddy.errors import TeddyError, unknown


@dataclass(frozen=True)
class Images:
    """Pixels uint8 [N, C, H, W] with their labels int64 [N]."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, rows: Tensor) -> "Images":
        return Images(self.pixels[rows], self.labels[rows])

    def to(self, device: torch.device) -> "Images":
        """The same on another device."""
        return Images(self.pixels.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Task:
    """What a network is built for."""

    num_classes: int
    channels: int
    image_size: int


@dataclass(frozen=True)
class Source:
    """A data set of real images: training and test part, class names in label order, normalisation."""

    name: str
    classes: tuple[str, ...]
    train: Images
    test: Images
    preprocessing: Preprocessing = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "preprocessing", measure(self.train.pixels))

    @property
    def channels(self) -> int:
        """1 for grey-scale, 3 for colour."""
        return self.train.pixels.shape[1]

    @property
    def image_size(self) -> int:
        """Side in pixels."""
        return self.train.pixels.shape[2]

    @property
    def task(self) -> Task:
        """What a network for these images has to take and tell apart."""
        return Task(len(self.classes), self.channels, self.image_size)

    def class_counts(self) -> list[int]:
        """Training images of each class."""
        return torch.bincount(self.train.labels, minlength=len(self.classes)).tolist()

    def fingerprint(self) -> str:
        """Changes when any image, label or class name does."""
        digest = hashlib.sha256("\0".join(self.classes).encode())
        for images in (self.train, self.test):
            for tensor in (images.pixels, images.labels):
                digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def describe(self) -> dict[str, object]:
        """What the run folder keeps of it."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint(),
            "classes": list(self.classes),
            "class_counts": self.class_counts(),
            "test_images": len(self.test),
            "shape": list(self.train.pixels.shape[1:]),
            "mean": list(self.preprocessing.mean),
            "std": list(self.preprocessing.std),
        }

    def draw(self, per_class: int, generator: torch.Generator) -> Images:
        """`per_class` training images of every class, without repetition, class after class."""
        rows = []
        for label in range(len(self.classes)):
            members = (self.train.labels == label).nonzero().flatten()
            rows.append(members[torch.randperm(len(members), generator=generator)[:per_class]])
        return self.train[torch.cat(rows)]

    def require(self, per_class: int) -> None:
        """Raise unless every class has `per_class` training images: the random control needs as many."""
        for name, count in zip(self.classes, self.class_counts(), strict=True):
            if count < per_class:
                raise TeddyError(
                    f"{self.name}: class '{name}' has {count} training images and {per_class} are needed; "
                    f"lower --ipc to {min(self.class_counts())} or add images"
                )


@dataclass(frozen=True)
class Kind:
    """A kind of source: what it looks like to a user, and how it is read."""

    summary: str
    read: Callable[[str, int | None, float], tuple[tuple[str, ...], Tensor, Tensor, Tensor, Tensor]]


SOURCES = {
    "digits": Kind("1,797 handwritten digits that come with scikit-learn; 16 × 16, grey, 10 classes", read_digits),
    "FOLDER": Kind(
        "a folder with one folder of images per class, or with train/ and val/ (or test/) of such", read_folder
    ),
}


def open_source(source: str, image_size: int | None, test_share: float) -> Source:
    """Read all of a source: a bundled one by name, or a folder by path."""
    if source in SOURCES and source != "FOLDER":
        kind = SOURCES[source]
    elif Path(source).exists():
        kind = SOURCES["FOLDER"]
    elif "/" in source or "\\" in source:
        raise TeddyError(f"source {source}: no such folder")
    else:
        raise unknown("source", source, SOURCES)
    classes, train_pixels, train_labels, test_pixels, test_labels = kind.read(source, image_size, test_share)
    name = Path(source).name if kind is SOURCES["FOLDER"] else source
    return Source(name, classes, Images(train_pixels, train_labels), Images(test_pixels, test_labels))
