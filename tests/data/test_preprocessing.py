import torch

from teddy.data.preprocessing import Preprocessing, from_histogram, histogram


def test_mean_and_deviation_are_those_of_the_pixels():
    pixels = torch.randint(0, 256, (20, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    measured = from_histogram(histogram(pixels))
    scaled = pixels.double() / 255
    torch.testing.assert_close(torch.tensor(measured.mean).double(), scaled.mean((0, 2, 3)), atol=1e-6, rtol=0)
    expected = scaled.transpose(0, 1).flatten(1).std(1, correction=0)
    torch.testing.assert_close(torch.tensor(measured.std).double(), expected, atol=1e-6, rtol=0)


def test_a_channel_without_contrast_does_not_divide_by_zero():
    flat = torch.full((3, 1, 4, 4), 51, dtype=torch.uint8)
    assert from_histogram(histogram(flat)) == Preprocessing((0.2,), (1.0,))


def test_every_pixel_value_survives_the_way_there_and_back():
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    preprocessing = Preprocessing((0.48, 0.45, 0.4), (0.23, 0.22, 0.21))
    assert torch.equal(preprocessing.to_pixels(preprocessing.normalise(pixels)), pixels)


def test_bounds_are_black_and_white():
    preprocessing = Preprocessing((0.4,), (0.2,))
    black, white = preprocessing.bounds(torch.zeros(1))
    torch.testing.assert_close(black, preprocessing.normalise(torch.zeros(1, 1, 1, dtype=torch.uint8)))
    torch.testing.assert_close(white, preprocessing.normalise(torch.full((1, 1, 1), 255, dtype=torch.uint8)))


def test_gradients_pass_after_somebody_has_only_looked():
    preprocessing = Preprocessing((0.123,), (0.456,))
    with torch.inference_mode():
        preprocessing.normalise(torch.zeros(1, 1, 2, 2, dtype=torch.uint8))
    images = torch.zeros(1, 1, 2, 2, requires_grad=True)
    (images * preprocessing.bounds(images)[1]).sum().backward()
    torch.testing.assert_close(images.grad, torch.full((1, 1, 2, 2), (1 - 0.123) / 0.456))
