"""Groups of images that are stepped at the same time, and how far they are.

Shapes: G groups of B images, C channels, H × W pixels.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from teddy.data.augment import Change, apply_change, joined
from teddy.matching.statistics import GroupLabels
from teddy.pool.pool import Teacher
from teddy.synthesis.groups import Group, group_labels
from teddy.synthesis.real import Real, RealImages

DrawChange = Callable[[int, torch.Generator], Change]
Draws = Iterator[tuple[Teacher, ...]]
Gather = Callable[[Tensor, GroupLabels, list[tuple[Teacher, ...]], Real | None], tuple[Tensor, dict[str, Tensor]]]
"""Images, labels, the teachers of each group, real images to compare with → the gradient, and the terms."""


class Wave:
    """Adam on the pixels with a cosine, as the paper has it; it can be written down between two steps and taken up.

    A share `residual` of the images that it began with can be mixed in again, so many times at even distances. Where
    `real` images are drawn to compare with, they are augmented in the same draw: one that is shared is theirs too.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        images: Tensor,
        draws: Sequence[Draws],
        augmentations: Sequence[torch.Generator],
        learning_rate: float,
        weight_decay: float,
        iterations: int,
        residual: float = 0.0,
        residual_times: int = 0,
        real: RealImages | None = None,
    ) -> None:
        self.groups, self.images, self.done = groups, images.requires_grad_(), 0
        self._residual, self._start = residual, images.detach().clone() if residual else images
        self._mixed_after = {iterations * time // (residual_times + 1) for time in range(1, residual_times + 1)}
        self._labels = group_labels(groups, images.device)
        self._draws, self._augmentations = draws, augmentations
        self._real, self._classes = real, self._labels.classes.cpu()
        self._real_labels = real.labels(self._labels.classes) if real else None
        self._optimizer = torch.optim.Adam(
            [self.images], lr=learning_rate, betas=(0.5, 0.9), weight_decay=weight_decay, fused=images.is_cuda
        )
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, iterations)

    def step(self, gather: Gather, change: DrawChange, bounds: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Augment, compare, step, clamp; gives the terms."""
        changed, real = self._augmented(change)
        gradient, terms = gather(changed, self._labels, [next(drawn) for drawn in self._draws], real)
        self._optimizer.zero_grad()
        changed.backward(gradient)
        self._optimizer.step()
        self._schedule.step()
        self.done += 1
        with torch.no_grad():
            self.images.clamp_(*bounds)
            if self._residual and self.done in self._mixed_after:
                self.images.lerp_(self._start, self._residual)
        return terms

    def _augmented(self, change: DrawChange) -> tuple[Tensor, Real | None]:
        groups, group_size = self._labels.members.shape
        if not (self._real and self._real_labels):
            return apply_change(self.images, joined([change(group_size, each) for each in self._augmentations])), None
        drawn = [self._real.draw(*pair) for pair in zip(self._classes, self._augmentations, strict=True)]
        images = torch.cat([self.images.unflatten(0, (groups, -1)), torch.stack(drawn)], dim=1)
        changes = [change(images.shape[1], each) for each in self._augmentations]
        changed = apply_change(images.flatten(0, 1), joined(changes)).unflatten(0, (groups, -1))
        made, real = changed[:, :group_size], changed[:, group_size:].detach()
        return made.flatten(0, 1), Real(real.flatten(0, 1), self._real_labels)

    def state(self) -> dict[str, Tensor]:
        """Everything as tensors by name."""
        (adam,) = self._optimizer.state.values()
        return {
            "groups": torch.tensor([group.number for group in self.groups]),
            "done": torch.tensor(self.done),
            "rate": torch.tensor(self._optimizer.param_groups[0]["lr"], dtype=torch.float64),
            "augmentations": torch.stack([generator.get_state() for generator in self._augmentations]),
            "images": self.images.detach(),
            **{f"adam.{name}": value for name, value in adam.items()},
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """As it was when `tensors` were its state; left alone if that was of other groups."""
        if tensors["groups"].tolist() != [group.number for group in self.groups]:
            return
        self.done = int(tensors["done"])
        with torch.no_grad():
            self.images.copy_(tensors["images"])
        device = self.images.device
        self._optimizer.state[self.images] = {
            name.removeprefix("adam."): value.to(device if value.dim() or self.images.is_cuda else "cpu")
            for name, value in tensors.items()
            if name.startswith("adam.")
        }
        self._optimizer.param_groups[0]["lr"] = float(tensors["rate"])
        self._schedule.last_epoch = self.done
        for generator, state in zip(self._augmentations, tensors["augmentations"], strict=True):
            generator.set_state(state.clone())  # reads the memory that a view is part of, from its beginning
        for drawn in self._draws:
            for _ in range(self.done):
                next(drawn)
