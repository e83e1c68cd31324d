"""Augmentation of whole batches on the device, each image with its own draw.

Crop, zoom, rotation, shift and flip are one affine map per image and one resampling. All is differentiable in the
images.
Shapes: B images, C channels, H × W pixels; K classes.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from teddy.data.colour import Colour, coloured, draw_colours, draw_holes, with_holes
from teddy.data.memory import brought

Range = tuple[float, float]
NOTHING: dict[str, Any] = {
    "crop": None, "scale": None, "rotate": 0.0, "shift": 0.0, "flip": 0.0, "roll": 0, "colour": None, "cutout": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """What happens to each image of a batch: an affine map [B, 2, 3], a cyclic shift [B, 2] (down, right), other
    colours [B, 3] (added brightness, factors of saturation and contrast), a hole [B, 3] (where its middle is from above
    and from the left, and its side, as shares of the image's)."""

    maps: Tensor | None = None
    offsets: Tensor | None = None
    colours: Tensor | None = None
    holes: Tensor | None = None

    def each(self, function: Callable[[Tensor], Tensor]) -> "Change":
        """The function of everything that there is."""
        values = (getattr(self, field.name) for field in fields(self))
        return Change(*(None if value is None else function(value) for value in values))


@dataclass(frozen=True)
class Mix:
    """CutMix: the box (top, left, bottom, right) that each image gets from its partner [B]."""

    box: tuple[int, int, int, int]
    partner: Tensor


def draw_change(
    count: int,
    height: int,
    width: int,
    generator: torch.Generator,
    *,
    crop: Range | None = None,
    ratio: Range = (3 / 4, 4 / 3),
    scale: Range | None = None,
    rotate: float = 0.0,
    shift: float = 0.0,
    flip: float = 0.0,
    roll: int = 0,
    colour: Colour | None = None,
    cutout: float = 0.0,
    shared: bool = False,
    one_of: bool = False,
) -> Change:
    """A change for each of `count` images, or one that they share; of all its kinds, or of one of them, drawn too."""
    draws = 1 if shared else count
    asked: dict[str, Any] = {"crop": crop, "scale": scale, "rotate": rotate, "shift": shift, "flip": flip, "roll": roll,
             "colour": colour, "cutout": cutout}  # fmt: skip
    kinds = [name for name, value in asked.items() if value]
    if one_of:
        kinds = [kinds[int(torch.randint(len(kinds), (1,), generator=generator))]] if kinds else []
    drawn = {name: value if name in kinds else NOTHING[name] for name, value in asked.items()}
    maps = offsets = colours = holes = None
    # What is asked for and not drawn is there too, and changes nothing: batches of one loader are all of one form.
    if crop or scale or rotate or shift or flip:
        shifts = (2 * drawn["shift"] / width, 2 * drawn["shift"] / height)
        maps = affine_maps(
            draws, generator, crop=drawn["crop"], ratio=ratio, scale=drawn["scale"], rotate=drawn["rotate"],
            shift=shifts, flip=drawn["flip"],
        )  # fmt: skip
    if roll:
        offsets = torch.randint(-drawn["roll"], drawn["roll"] + 1, (draws, 2), generator=generator)
    if colour:
        colours = draw_colours(draws, generator, drawn["colour"])
    if cutout:
        holes = draw_holes(draws, generator, drawn["cutout"])
    return Change(maps, offsets, colours, holes).each(lambda part: part.expand(count, *part.shape[1:]))


def apply_change(images: Tensor, change: Change, fill: Tensor | None = None) -> Tensor:
    """The images, each changed in its way."""
    change = change.each(lambda part: brought(part, images.device))
    if change.maps is not None:
        images = resample(images, change.maps, fill, change.offsets)
    elif change.offsets is not None:
        images = roll_each(images, change.offsets)
    if change.colours is not None:
        images = coloured(images, change.colours)
    return images if change.holes is None else with_holes(images, change.holes)


def joined(changes: Sequence[Change]) -> Change:
    """Those of batches one after the other, for all their images."""
    parts = ([getattr(change, field.name) for change in changes] for field in fields(Change))
    return Change(*(torch.cat(some) if some and some[0] is not None else None for some in parts))


def affine_maps(
    count: int,
    generator: torch.Generator,
    *,
    crop: Range | None,
    ratio: Range,
    scale: Range | None,
    rotate: float,
    shift: tuple[float, float],
    flip: float,
) -> Tensor:
    """Random maps [count, 2, 3] from places in the result to places in the image, both running from −1 to 1."""
    u = torch.rand(count, 9, generator=generator)
    half_width = half_height = torch.ones(count)
    centre_x = centre_y = torch.zeros(count)
    if crop:
        half_width, half_height = crop_sides(u[:, 0], u[:, 1], crop, ratio)
        centre_x = (2 * u[:, 2] - 1) * (1 - half_width)
        centre_y = (2 * u[:, 3] - 1) * (1 - half_height)
    if scale:
        zoom = _between(u[:, 4], scale)
        half_width, half_height = half_width / zoom, half_height / zoom
    centre_x = centre_x + (2 * u[:, 5] - 1) * shift[0]
    centre_y = centre_y + (2 * u[:, 6] - 1) * shift[1]
    angle = (2 * u[:, 7] - 1) * math.radians(rotate)
    mirror = 1 - 2 * (u[:, 8] < flip).float()
    cos, sin = angle.cos(), angle.sin()
    rows = [
        half_width * cos * mirror,
        -half_width * sin,
        centre_x,
        half_height * sin * mirror,
        half_height * cos,
        centre_y,
    ]
    return torch.stack(rows, dim=1).view(count, 2, 3)


def crop_sides(area_draw: Tensor, ratio_draw: Tensor, area: Range, ratio: Range) -> tuple[Tensor, Tensor]:
    """Width and height, as shares of the image's, of crops with an area drawn evenly and a ratio drawn evenly in its
    logarithm; a side that would stick out is cut to 1."""
    share = _between(area_draw, area)
    aspect = _between(ratio_draw, (math.log(ratio[0]), math.log(ratio[1]))).exp()
    return (share * aspect).sqrt().clamp(max=1), (share / aspect).sqrt().clamp(max=1)


def resample(images: Tensor, maps: Tensor, fill: Tensor | None = None, offsets: Tensor | None = None) -> Tensor:
    """Each image read through its map, bilinearly, then shifted cyclically by its offset."""
    maps = maps.to(images.dtype)
    if offsets is None:
        grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    else:  # the places are shifted, not what is read there: gradients need no second pass
        grid = rolled_grid(maps, offsets, *images.shape[2:])
    if fill is None:
        return F.grid_sample(images, grid, align_corners=False)
    return F.grid_sample(images - fill, grid, align_corners=False) + fill


def rolled_grid(maps: Tensor, offsets: Tensor, height: int, width: int) -> Tensor:
    """Where each pixel [B, H, W, 2] of a result that is shifted cyclically by `offsets` [B, 2] is read through its map.

    A map is linear in row and column, so that the grid is a sum of what depends on the one and on the other.
    """
    x, y = (
        2 * (torch.arange(side, device=maps.device) - shift[:, None]).remainder(side).to(maps.dtype) / side
        + (1 / side - 1)
        for side, shift in ((width, offsets[:, 1]), (height, offsets[:, 0]))
    )
    grid = maps.new_empty(len(maps), height, width, 2)
    for place in range(2):
        by_column = maps[:, place, :1] * x
        by_row = maps[:, place, 1:2] * y + maps[:, place, 2:]
        torch.add(by_column[:, None, :], by_row[:, :, None], out=grid[..., place])
    return grid


def roll_each(images: Tensor, offsets: Tensor) -> Tensor:
    """Each image shifted cyclically by its own (down, right) of `offsets` [B, 2]."""
    height, width = images.shape[-2:]
    rows = (torch.arange(height, device=images.device) - offsets[:, :1]) % height
    columns = (torch.arange(width, device=images.device) - offsets[:, 1:]) % width
    every = torch.arange(len(images), device=images.device)
    return images[every[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def draw_mix(count: int, height: int, width: int, alpha: float, generator: torch.Generator) -> Mix:
    """One box for the batch, with an area drawn from Beta(α, α) and cut to the image, and a partner for each image."""
    # torch's own Beta distribution takes no generator.
    beta = random.Random(int(torch.randint(2**62, (1,), generator=generator))).betavariate(alpha, alpha)
    side = math.sqrt(1 - beta)
    middle = torch.rand(2, generator=generator)
    top, bottom = _span(float(middle[0]), round(side * height), height)
    left, right = _span(float(middle[1]), round(side * width), width)
    return Mix((top, left, bottom, right), torch.randperm(count, generator=generator))


def apply_mix(images: Tensor, targets: Tensor, mix: Mix) -> tuple[Tensor, Tensor]:
    """Images with their partners' boxes; targets [B, K] mix by the area that the box really has."""
    top, left, bottom, right = mix.box
    partner = brought(mix.partner, images.device)
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = images[partner, :, top:bottom, left:right]
    kept = 1 - (bottom - top) * (right - left) / (images.shape[-2] * images.shape[-1])
    return mixed, kept * targets + (1 - kept) * targets[partner]


def _span(middle: float, length: int, size: int) -> tuple[int, int]:
    start = int(middle * size) - length // 2
    return max(start, 0), min(start + length, size)


def _between(draw: Tensor, bounds: Range) -> Tensor:
    return bounds[0] + draw * (bounds[1] - bounds[0])
