"""Where images start."""

import pytest
import torch

from teddy.config import MethodSettings
from teddy.data.source import Source
from teddy.methods.method import initial_images, mosaics
from teddy.methods.typical import draw_typical, middle_rows
from teddy.models.convnet import ConvNet
from teddy.pool.measuring import last_features
from teddy.pool.pool import Pool


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
    start = initial_images(settings, source, Pool(()), 3, torch.Generator().manual_seed(0))
    pixels = source.preprocessing.to_pixels(start)
    assert (pixels[:3] == 10).all()
    assert (pixels[3:] == 200).all()


def test_the_middle_of_each_cluster_is_found_and_the_largest_cluster_comes_first():
    far, near = torch.tensor([[100.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    around = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    features = torch.cat([far + around[:2], far, near + around, near])  # the middles are rows 2 and 7
    assert middle_rows(features, 2, seed=0).tolist() == [7, 2]
    assert sorted(middle_rows(features, len(features), seed=0).tolist()) == list(range(len(features)))


@pytest.mark.filterwarnings("error")
def test_images_that_are_alike_fill_up():
    features = torch.cat([torch.zeros(6, 3), torch.ones(4, 3)])
    rows = middle_rows(features, 5, seed=0).tolist()
    assert len(set(rows)) == 5
    assert {row < 6 for row in rows[:2]} == {True, False}


def test_typical_images_are_of_their_class_and_differ(source: Source):
    torch.manual_seed(0)
    network = ConvNet(depth=2, width=5, norm="bn", num_classes=2, channels=1, image_size=8).eval()
    drawn = draw_typical(source, network, 5, torch.Generator().manual_seed(0))
    assert drawn.labels.tolist() == [0] * 5 + [1] * 5
    assert len(drawn.pixels.flatten(1).unique(dim=0)) == 10
    again = draw_typical(source, network, 5, torch.Generator().manual_seed(0))
    assert torch.equal(drawn.pixels, again.pixels)


def test_last_features_are_what_the_classifier_is_given(source: Source):
    torch.manual_seed(0)
    network = ConvNet(depth=2, width=5, norm="bn", num_classes=2, channels=1, image_size=8).eval()
    normal = source.preprocessing.normalise(source.train.pixels)
    with torch.no_grad():
        torch.testing.assert_close(network.classifier(last_features(network, source)), network(normal))
    assert not network.classifier._forward_pre_hooks
