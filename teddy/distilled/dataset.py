"""A distilled set as PyTorch sees it.

Shapes: N images, C channels, H × W pixels, K classes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from teddy import seeding
from teddy.data.decode import prepare
from teddy.data.images import Images
from teddy.data.preprocessing import Preprocessing
from teddy.data.source import Task
from teddy.errors import TeddyError
from teddy.stored_labels import Replay


@dataclass(frozen=True)
class EvaluationTransform:
    """A picture as the students' test images were prepared: PIL of any mode, or uint8 [C, H, W] or [H, W], →
    normalised [channels, image_size, image_size]."""

    image_size: int
    channels: int
    preprocessing: Preprocessing

    def __call__(self, picture: Image.Image | Tensor) -> Tensor:
        """The normalised image."""
        image = _as_pil(picture) if isinstance(picture, Tensor) else picture
        return self.preprocessing.normalise(prepare(image, self.image_size, self.channels))


class DistilledSet(Dataset[tuple[Tensor, Tensor]]):
    """A small set of images with soft labels.

    An item is a normalised image [C, H, W] and its label [K] as probabilities at `temperature`, which
    `torch.nn.functional.cross_entropy` takes as they are. `stored` are labels of augmented images, see
    `teddy.stored_labels`.
    """

    def __init__(
        self,
        images: Images,
        logits: Tensor,
        classes: tuple[str, ...],
        preprocessing: Preprocessing,
        temperature: float = 1.0,
        stored: dict[str, Tensor] | None = None,
    ) -> None:
        self.images = images
        self.logits = logits
        self.classes = classes
        self.preprocessing = preprocessing
        self.temperature = temperature
        self.stored = stored

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        image = self.preprocessing.normalise(self.images.pixels[row])
        return image, (self.logits[row] / self.temperature).softmax(0)

    @property
    def labels(self) -> Tensor:
        """The hard labels, int64 [N]."""
        return self.images.labels

    @property
    def evaluation_transform(self) -> EvaluationTransform:
        """What brings a real image into the form the students were tested on."""
        channels, size = self.images.pixels.shape[1:3]
        return EvaluationTransform(size, channels, self.preprocessing)

    def training_batches(self, batch_size: int, epoch: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Images [B, C, H, W] and soft labels [B, K] of one epoch.

        Where labels were stored with their augmentations, those are replayed, in the batches they were made for.
        Otherwise the images come as they are, in an order that `seed` repeats, in batches that differ by one at most.
        """
        if batch_size < 1:
            raise TeddyError(f"batch_size: is {batch_size}; give 1 or more")
        if self.stored is not None:
            channels, size = self.images.pixels.shape[1:3]
            task = Task(len(self.classes), channels, size)
            for batch in Replay(self.images, self.preprocessing, task, self.stored).epoch(epoch):
                assert batch.teacher_logits is not None
                yield batch.images, (batch.teacher_logits / self.temperature).softmax(1)
            return
        order = torch.randperm(len(self), generator=seeding.stream(seed, "distilled", "epoch", epoch))
        for rows in order.tensor_split(math.ceil(len(self) / batch_size)):
            images = self.preprocessing.normalise(self.images.pixels[rows])
            yield images, (self.logits[rows] / self.temperature).softmax(1)


def _as_pil(picture: Tensor) -> Image.Image:
    picture = picture[None] if picture.dim() == 2 else picture
    if picture.dtype != torch.uint8 or picture.dim() != 3 or picture.shape[0] not in (1, 3):
        raise TeddyError(
            f"evaluation_transform: takes a PIL image or a uint8 tensor [C, H, W] with 1 or 3 channels, "
            f"not {picture.dtype} {list(picture.shape)}"
        )
    array = picture.permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(array.squeeze(2) if len(picture) == 1 else array)
