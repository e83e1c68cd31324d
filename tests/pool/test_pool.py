"""Drawing from a pool, and what is measured with its teachers."""

from collections import Counter

import pytest
import torch
from torch import nn

from teddy import seeding
from teddy.data import images as images_module
from teddy.data.source import Source
from teddy.models.convnet import ConvNet
from teddy.models.layers import recorded_layers
from teddy.models.zoo import build_network
from teddy.pool.measuring import measure
from teddy.pool.pool import Pool, Teacher

CPU = torch.device("cpu")


def pool_of(size: int) -> Pool:
    return Pool(tuple(Teacher(f"t{k}", float(k), nn.Identity()) for k in range(size)))


def test_teachers_are_drawn_without_repetition_and_all_alike():
    generator = seeding.stream(0, "draws")
    counts: Counter[str] = Counter()
    for _ in range(3000):
        drawn = [teacher.name for teacher in pool_of(6).draw(2, generator)]
        assert len(set(drawn)) == 2
        counts.update(["+".join(sorted(drawn))])
    assert len(counts) == 15  # every pair
    assert all(count == pytest.approx(200, abs=60) for count in counts.values())


@pytest.mark.parametrize(
    ("size", "count", "expected"), [(8, 8, [0, 1, 2, 3, 4, 5, 6, 7]), (8, 1, [7]), (8, 2, [3, 7]), (9, 4, [2, 4, 6, 8])]
)
def test_a_spread_ends_with_the_last(size: int, count: int, expected: list[int]):
    assert [teacher.accuracy for teacher in pool_of(size).spread(count)] == expected


@pytest.mark.parametrize("batch", [1, 5, 24])
def test_class_means_by_naive_loops(source: Source, batch: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(images_module, "MOST_PIXELS", batch * 64)
    torch.manual_seed(0)
    network = ConvNet(depth=1, width=3, norm="bn", num_classes=2, channels=1, image_size=8).eval()
    measured = measure(network, source, CPU, class_means=True)
    before_norm, last = measured.class_means
    for label in range(2):
        images = source.preprocessing.normalise(source.train.pixels[source.train.labels == label])
        expected = network.features[0](images).mean((0, 2, 3))
        torch.testing.assert_close(before_norm[label], expected)
        torch.testing.assert_close(last[label], network.features(images).flatten(1).mean(0))
    assert measured.means == ()  # BatchNorm has its own
    assert measure(network, source, CPU, class_means=False).class_means == ()


# Inputs of normalisation layers as [B, C, H, W], [B, tokens, C] and [B, H, W, C].
@pytest.mark.parametrize("name", ["convnet-d1-w4-in", "vit_b_16", "convnext_tiny"])
def test_networks_without_batchnorm_are_measured_on_the_data(
    source: Source, name: str, monkeypatch: pytest.MonkeyPatch
):
    size = 8 if name.startswith("convnet-") else 32
    pixels = source.train.pixels.repeat_interleave(size // 8, 2).repeat_interleave(size // 8, 3)
    larger = Source("large", source.classes, type(source.train)(pixels, source.train.labels), source.test, 1, size,
                    source.preprocessing, "large")  # fmt: skip
    monkeypatch.setattr(images_module, "MOST_PIXELS", 7 * size**2)
    torch.manual_seed(0)
    network = build_network(name, larger.task).eval()
    *norms, _ = recorded_layers(network)
    measured = measure(network, larger, CPU, class_means=True)
    assert len(measured.means) == len(measured.variances) == len(norms) == len(measured.class_means) - 1
    inputs: dict[nn.Module, torch.Tensor] = {}
    for layer in norms:
        layer.register_forward_pre_hook(lambda layer, given: inputs.update({layer: given[0]}))
    with torch.no_grad():
        network(larger.preprocessing.normalise(pixels))
    for layer, mean, variance, class_means in zip(
        norms, measured.means, measured.variances, measured.class_means[:-1], strict=True
    ):
        given = inputs[layer]
        channels = layer.weight.shape[0]
        first = given if given.shape[1] == channels and given.dim() == 4 else given.movedim(-1, 1)
        values = first.transpose(0, 1).flatten(1)
        assert len(values) == channels
        torch.testing.assert_close(mean, values.mean(1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(variance, values.var(1, correction=0), rtol=1e-3, atol=1e-5)
        expected = first[larger.train.labels == 1].flatten(2).mean((0, 2))
        torch.testing.assert_close(class_means[1], expected, rtol=1e-3, atol=1e-4)


def test_measuring_leaves_the_network_as_it_was(source: Source):
    network = ConvNet(depth=1, width=3, norm="bn", num_classes=2, channels=1, image_size=8).train()
    before = network.features[1].running_mean.clone()
    measure(network, source, CPU, class_means=True)
    assert network.training
    assert torch.equal(network.features[1].running_mean, before)
