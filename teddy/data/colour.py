"""Changes of an image that leave everything in its place: other colours, and a hole.

Shapes: B images, C channels, H × W pixels, normalised: 0 is the mean of the data.
"""

import torch
from torch import Tensor

Colour = tuple[float, float, float]
"""How far brightness, saturation and contrast may go, as DSA counts them."""


def draw_colours(count: int, generator: torch.Generator, most: Colour | None) -> Tensor:
    """Brightness that is added, up to half of its `most` either way; a factor on saturation, up to its `most`; one on
    contrast, from its `most` to 1 above it: [count, 3]. Nothing changes without `most`."""
    if most is None:
        return torch.tensor([[0.0, 1.0, 1.0]]).expand(count, 3)
    u = torch.rand(count, 3, generator=generator)
    return torch.stack([(u[:, 0] - 0.5) * most[0], u[:, 1] * most[1], u[:, 2] + most[2]], dim=1)


def coloured(images: Tensor, colours: Tensor) -> Tensor:
    """Images in other colours: brighter, then more or less saturated, then with more or less contrast."""
    brightness, saturation, contrast = colours.to(images.dtype)[:, :, None, None, None].unbind(1)
    images = images + brightness
    grey = images.mean(1, keepdim=True)
    images = grey + (images - grey) * saturation
    level = images.mean((1, 2, 3), keepdim=True)
    return level + (images - level) * contrast


def draw_holes(count: int, generator: torch.Generator, side: float) -> Tensor:
    """Middles anywhere, and the side: [count, 3]."""
    return torch.cat([torch.rand(count, 2, generator=generator), torch.full((count, 1), side)], dim=1)


def with_holes(images: Tensor, holes: Tensor) -> Tensor:
    """Images with a square of the data's mean colour in each, cut off at the edges."""
    height, width = images.shape[-2:]
    down, right, side = holes[:, :, None].unbind(1)
    rows = (torch.arange(height, device=images.device) + 0.5) / height
    columns = (torch.arange(width, device=images.device) + 0.5) / width
    inside = ((rows - down).abs() < side / 2)[:, :, None] & ((columns - right).abs() < side / 2)[:, None, :]
    return images.masked_fill(inside[:, None], 0.0)
