"""Soft labels that are stored, with the augmentations that go with them, so that students need no teachers.

The file is plain safetensors. Shapes: P epochs, N images, B batches an epoch, K classes, k of them kept.

    batches   int32   [1]           B
    order     int32   [P, N]        rows of the set as they are shown, cut evenly into B batches
    maps      float16 [P, N, 2, 3]  affine maps from result to image, both from −1 to 1, as affine_grid takes them
    offsets   int16   [P, N, 2]     cyclic shifts in pixels, down and right; after the maps
    boxes     int16   [P, B, 4]     CutMix: top, left, bottom, right; after the shifts
    partners  int32   [P, N]        CutMix: which image of the batch the box comes from
    logits    float16 [P, N, K]     or, for top-k:
    values    float16 [P, N, k]     the largest logits,
    indices   uint8 or int16 [P, N, k]  their classes,
    rest      float16 [P, N]        and the logit at which the other classes' probability is spread evenly

`maps`, `offsets`, `boxes` and `partners` are there if they are used. Epoch e of training replays epoch e mod P.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from safetensors.torch import load as load_tensors
from torch import Tensor

from teddy.data.augment import Change, Mix
from teddy.data.images import ImageSet
from teddy.data.loaders import Batch, Draw, Loader, augmented
from teddy.data.preprocessing import Preprocessing
from teddy.data.source import Task
from teddy.stopping import stop_if_asked

FILE = "stored_labels.safetensors"
FEWEST_KEPT = 3  # classes that a budget leaves of a label


@dataclass(frozen=True)
class Form:
    """How labels are stored: `epochs` of them, of all classes or the `top_k` largest."""

    epochs: int
    top_k: int | None = None


def choose_form(
    *,
    epochs: int,
    top_k: int | None,
    stored_epochs: int | None,
    budget_bytes: float | None,
    size_of: Callable[[Form], int],
    num_classes: int,
) -> Form:
    """The form asked for, cut down until `size_of` it fits the budget.

    Epochs go first, down to a tenth of the students': that costs least for what it saves (docs/RESULTS.md). Then
    classes, then epochs again; one epoch is always left.
    """
    form = Form(min(stored_epochs or epochs, epochs), top_k if top_k and top_k < num_classes else None)
    if budget_bytes is None or size_of(form) <= budget_bytes:
        return form
    fewest_epochs = min(max(epochs // 10, 1), form.epochs)
    fewest_kept = min(FEWEST_KEPT, form.top_k or num_classes)
    fewer_epochs = (Form(number, form.top_k) for number in range(form.epochs - 1, fewest_epochs - 1, -1))
    fewer_classes = (Form(fewest_epochs, kept) for kept in range((form.top_k or num_classes) - 1, fewest_kept - 1, -1))
    fewest = (Form(number, fewest_kept) for number in range(fewest_epochs - 1, 0, -1))
    fitting = (smaller for smaller in chain(fewer_epochs, fewer_classes, fewest) if size_of(smaller) <= budget_bytes)
    return next(fitting, Form(1, fewest_kept))


def stored_bytes(form: Form, loader: Loader) -> int:
    """What labels of that form take, without the file's header."""
    first, images = next(loader.draws(0)), len(loader.images)
    per_image = (
        4 + 12 * (first.change.maps is not None) + 4 * (first.change.offsets is not None) + 4 * (first.mix is not None)
    )
    num_classes = loader.task.num_classes
    per_label = 2 * num_classes if form.top_k is None else form.top_k * (2 + _index_type(num_classes).itemsize) + 2
    per_batch = 8 if first.mix else 0
    return 4 + form.epochs * (images * (per_image + per_label) + loader.batches_per_epoch * per_batch)


def record(loader: Loader, form: Form, temperature: float) -> dict[str, Tensor]:
    """The tensors of the file: `loader`'s epochs, labelled by its labeller."""
    return join_epochs(loader, [record_epoch(loader, number, form, temperature) for number in range(form.epochs)])


def record_epoch(loader: Loader, number: int, form: Form, temperature: float) -> dict[str, Tensor]:
    """One epoch of them."""
    assert loader.label is not None
    stop_if_asked()
    draws = [_as_stored(draw) for draw in loader.draws(number)]
    parts = loader.images.batches([draw.rows for draw in draws])
    logits = [
        loader.label(augmented(part, draw, loader.preprocessing, loader.task.num_classes)[0], number).cpu()
        for part, draw in zip(parts, draws, strict=True)
    ]
    return _pack(draws) | compress(torch.cat(logits), form.top_k, temperature)


def join_epochs(loader: Loader, epochs: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Epochs that were recorded one by one, together."""
    stacked = {name: torch.stack([epoch[name] for epoch in epochs]) for name in epochs[0]}
    return {"batches": torch.tensor([loader.batches_per_epoch], dtype=torch.int32), **stacked}


class Replay:
    """Training on stored labels; has the interface of `Epochs`."""

    def __init__(self, images: ImageSet, preprocessing: Preprocessing, task: Task, tensors: dict[str, Tensor]) -> None:
        self.images = images
        self.preprocessing = preprocessing
        self.task = task
        self.batches_per_epoch = int(tensors["batches"])
        self._epochs = {name: tensor for name, tensor in tensors.items() if name != "batches"}

    def epoch(self, number: int, skipped: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, as they were recorded, without the first ones."""
        stored = {name: tensor[number % len(tensor)] for name, tensor in self._epochs.items()}
        draws = _unpack(stored, self.batches_per_epoch)[skipped:]
        labels = expand(stored, self.task.num_classes).tensor_split(self.batches_per_epoch)[skipped:]
        parts = self.images.batches([draw.rows for draw in draws])
        for part, draw, logits in zip(parts, draws, labels, strict=True):
            images, targets = augmented(part, draw, self.preprocessing, self.task.num_classes)
            yield Batch(images, targets, logits.to(images.device))


def read_stored(content: bytes, num_images: int, task: Task) -> dict[str, Tensor]:
    """The tensors of a file that may come from a stranger; ValueError says what is wrong with it."""
    try:
        tensors = load_tensors(content)
    except Exception:  # whatever the library makes of such bytes, it is the file that is wrong
        raise ValueError("not readable as safetensors") from None
    for name, holds in _expectations(tensors, num_images, task).items():
        if not holds:
            raise ValueError(f"'{name}' is not what {num_images} images and {task.num_classes} classes need")
    return tensors


def _expectations(tensors: dict[str, Tensor], num_images: int, task: Task) -> dict[str, bool]:
    """Name → whether the tensor of that name, or its absence, is right."""
    order, batches = tensors.get("order"), tensors.get("batches")
    if batches is None or batches.shape != (1,) or batches.dtype != torch.int32 or not 1 <= int(batches) <= num_images:
        return {"batches": False}
    if order is None or order.dim() != 2 or not len(order):
        return {"order": False}
    epochs, parts, size, classes = len(order), int(batches), task.image_size, task.num_classes
    kept = tensors["values"].shape[-1] if "values" in tensors and tensors["values"].dim() else 0
    each = (epochs, num_images)
    expected = {
        "batches": (torch.int32, (1,)),
        "order": (torch.int32, each),
        "maps": (torch.float16, (*each, 2, 3)),
        "offsets": (torch.int16, (*each, 2)),
        "boxes": (torch.int16, (epochs, parts, 4)),
        "partners": (torch.int32, each),
        "logits": (torch.float16, (*each, classes)),
        "values": (torch.float16, (*each, kept)),
        "indices": (_index_type(classes), (*each, kept)),
        "rest": (torch.float16, each),
    }
    forms = ({"logits"}, {"values", "indices", "rest"})
    present = set(tensors)
    if not present <= set(expected) or present & (forms[0] | forms[1]) not in forms or not kept < classes:
        return {"logits": False}
    if ("boxes" in present) != ("partners" in present):
        return {"boxes": False}
    fits = {name: (tensors[name].dtype, tuple(tensors[name].shape)) == expected[name] for name in present}
    if not all(fits.values()):
        return fits
    every = torch.arange(num_images, dtype=torch.int32)
    fits["order"] = bool((order.sort(1).values == every).all())
    for name in present & {"maps", "logits", "values", "rest"}:
        fits[name] = bool(tensors[name].isfinite().all())
    if "indices" in present:
        fits["indices"] = bool((tensors["indices"] >= 0).all() and (tensors["indices"] < classes).all())
    if "boxes" in present:
        (top, left, bottom, right), partners = tensors["boxes"].unbind(2), tensors["partners"]
        fits["boxes"] = bool(((top >= 0) & (left >= 0) & (top <= bottom) & (left <= right)).all())
        fits["boxes"] &= bool(((bottom <= size) & (right <= size)).all())
        sizes = torch.cat([torch.full((len(part),), len(part)) for part in every.tensor_split(parts)])
        fits["partners"] = bool(((partners >= 0) & (partners < sizes)).all())
    return fits


def compress(logits: Tensor, top_k: int | None, temperature: float) -> dict[str, Tensor]:
    """Labels [N, K] as they are stored. What the k largest leave of the probability at `temperature` goes evenly to the
    other classes."""
    if top_k is None:
        return {"logits": logits.half()}
    values, indices = logits.topk(top_k, dim=1)
    others = logits.scatter(1, indices, -math.inf)
    rest = temperature * (torch.logsumexp(others / temperature, dim=1) - math.log(logits.shape[1] - top_k))
    return {"values": values.half(), "indices": indices.to(_index_type(logits.shape[1])), "rest": rest.half()}


def expand(stored: dict[str, Tensor], num_classes: int) -> Tensor:
    """Labels [N, K] from what `compress` made."""
    if "logits" in stored:
        return stored["logits"].float()
    full = stored["rest"].float()[:, None].repeat(1, num_classes)
    return full.scatter(1, stored["indices"].long(), stored["values"].float())


def _as_stored(draw: Draw) -> Draw:
    """In half precision already when it is labelled: the label is of the image that will be seen."""
    maps = draw.change.maps.half().float() if draw.change.maps is not None else None
    return Draw(draw.rows, Change(maps, draw.change.offsets), draw.mix)


def _pack(draws: list[Draw]) -> dict[str, Tensor]:
    packed = {"order": torch.cat([draw.rows for draw in draws]).int()}
    maps = [draw.change.maps for draw in draws if draw.change.maps is not None]
    offsets = [draw.change.offsets for draw in draws if draw.change.offsets is not None]
    mixes = [draw.mix for draw in draws if draw.mix is not None]
    if maps:
        packed["maps"] = torch.cat(maps).half()
    if offsets:
        packed["offsets"] = torch.cat(offsets).short()
    if mixes:
        packed["boxes"] = torch.tensor([mix.box for mix in mixes], dtype=torch.int16)
        packed["partners"] = torch.cat([mix.partner for mix in mixes]).int()
    return packed


def _unpack(stored: dict[str, Tensor], batches: int) -> list[Draw]:
    def cut(name: str) -> list[Tensor | None]:
        return list(stored[name].tensor_split(batches)) if name in stored else [None] * batches

    draws = []
    for place, (rows, maps, offsets, partner) in enumerate(
        zip(cut("order"), cut("maps"), cut("offsets"), cut("partners"), strict=True)
    ):
        assert rows is not None
        mix = None
        if partner is not None:
            top, left, bottom, right = stored["boxes"][place].tolist()
            mix = Mix((top, left, bottom, right), partner.long())
        change = Change(maps.float() if maps is not None else None, offsets.long() if offsets is not None else None)
        draws.append(Draw(rows.long(), change, mix))
    return draws


def _index_type(num_classes: int) -> torch.dtype:
    return torch.uint8 if num_classes <= 256 else torch.int16
