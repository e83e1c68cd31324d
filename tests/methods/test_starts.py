"""Where images start."""

import torch

from teddy.config import MethodSettings
from teddy.data.source import Source
from teddy.methods.method import mosaics, noise_or_real


def test_a_mosaic_is_made_of_smaller_images_row_by_row():
    flat = torch.arange(8.0).view(8, 1, 1, 1).expand(8, 3, 6, 6)  # eight images of one colour each
    made = mosaics(flat, 2)
    assert made.shape == (2, 3, 6, 6)
    for number, image in enumerate(made):
        corners = [image[:, :3, :3], image[:, :3, 3:], image[:, 3:, :3], image[:, 3:, 3:]]
        for place, corner in enumerate(corners):
            torch.testing.assert_close(corner, torch.full_like(corner, 4 * number + place))
    assert mosaics(flat, 1) is flat


def test_a_mosaics_tiles_are_of_its_own_class(source: Source):
    source.train.pixels[:12], source.train.pixels[12:] = 10, 200
    settings = MethodSettings(initial="real", tiles=2)
    start = noise_or_real(settings, source, 3, torch.Generator().manual_seed(0))
    pixels = source.preprocessing.to_pixels(start)
    assert (pixels[:3] == 10).all()
    assert (pixels[3:] == 200).all()
