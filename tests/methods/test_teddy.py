"""The whole of Eq. 6, against an implementation that walks through the layers by itself."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from teddy.config import MethodSettings
from teddy.engine import Engine
from teddy.methods import METHODS
from teddy.methods.teddy import weighted_objective
from teddy.models.convnet import ConvNet
from teddy.models.layers import batch_norms
from teddy.pool.measuring import running_statistics
from teddy.pool.pool import Teacher, freeze
from teddy.synthesis.groups import Group, group_labels
from teddy.synthesis.passes import Objective, Passes


def make_teacher(seed: int) -> Teacher:
    torch.manual_seed(seed)
    network = ConvNet(depth=2, width=5, norm="bn", num_classes=3, channels=1, image_size=8)
    for layer in batch_norms(network):
        layer.running_mean = torch.randn(5)
        layer.running_var = torch.rand(5) + 0.5
    kept = running_statistics(network)
    class_means = (torch.randn(3, 5), torch.randn(3, 5), torch.randn(3, 20))
    return Teacher(f"teacher-{seed}", 0.0, freeze(network), kept.means, kept.variances, class_means)


def terms_of(objective: Objective, images: torch.Tensor, labels: torch.Tensor, *teachers: Teacher) -> dict[str, float]:
    """Summed over teachers."""
    totals: dict[str, float] = {}
    compute = Passes(objective, Engine(torch.device("cpu")))
    group = group_labels([Group(0, 0, labels, labels)], torch.device("cpu"))
    for teacher in teachers:
        for name, value in compute(images, group, teacher).terms.items():
            totals[name] = totals.get(name, 0.0) + value.item()
    return totals


def naive_terms(images: torch.Tensor, labels: torch.Tensor, teachers: list[Teacher]) -> dict[str, float]:
    """Layer by layer, without hooks; channel by channel, without vectors."""
    totals = {"global": 0.0, "every": 0.0, "last": 0.0, "classifier": 0.0}
    for teacher in teachers:
        network, x, layer_number = teacher.network, images, 0
        assert isinstance(network, ConvNet)
        for layer in network.features:
            if isinstance(layer, nn.BatchNorm2d):
                mean_gap = variance_gap = 0.0
                for channel in range(5):
                    values = x[:, channel].flatten()
                    mean = values.sum() / len(values)
                    variance = ((values - mean) ** 2).sum() / len(values)
                    mean_gap += float(mean - layer.running_mean[channel]) ** 2
                    variance_gap += float(variance - layer.running_var[channel]) ** 2
                totals["global"] += mean_gap**0.5 + variance_gap**0.5
                totals["every"] += naive_class_gap(x.mean((2, 3)), labels, teacher.class_means[layer_number])
                layer_number += 1
            x = layer(x)
        features = x.flatten(1)
        gap = naive_class_gap(features, labels, teacher.class_means[-1])
        totals["last"] += gap
        totals["every"] += gap
        probabilities = network.classifier(features).softmax(1)
        totals["classifier"] += sum(-float(p[k].log()) for p, k in zip(probabilities, labels, strict=True)) / len(
            labels
        )
    return totals


def naive_class_gap(features: torch.Tensor, labels: torch.Tensor, real: torch.Tensor) -> float:
    gaps = []
    for label in sorted(set(labels.tolist())):
        rows = [feature for feature, other in zip(features, labels.tolist(), strict=True) if other == label]
        gaps.append(float((sum(rows) / len(rows) - real[label]).norm()))
    return sum(gaps) / len(gaps)


TEDDY_ALONE = weighted_objective(global_weight=1.0, class_wise_weight=0.0, every_layer=False, classifier_weight=1.0)


@pytest.mark.parametrize("layers", ["last", "every"])
@pytest.mark.parametrize("num_teachers", [1, 3])
def test_the_objective_is_equation_6(layers: str, num_teachers: int):
    teachers = [make_teacher(seed) for seed in range(num_teachers)]
    images, labels = torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    objective = weighted_objective(
        global_weight=0.7, class_wise_weight=0.3, every_layer=layers == "every", classifier_weight=2.0
    )
    terms = terms_of(objective, images, labels, *teachers)
    naive = naive_terms(images, labels, teachers)
    assert terms["global"] == pytest.approx(0.7 * naive["global"], rel=1e-4)
    assert terms["class-wise"] == pytest.approx(0.3 * naive[layers], rel=1e-4)
    assert terms["classifier"] == pytest.approx(2.0 * naive["classifier"], rel=1e-4)


def test_terms_without_weight_are_not_computed():
    images, labels = torch.randn(3, 1, 8, 8), torch.tensor([0, 1, 2])
    objective = weighted_objective(global_weight=1.0, class_wise_weight=0.0, every_layer=False, classifier_weight=0.0)
    assert list(terms_of(objective, images, labels, make_teacher(0))) == ["global"]


def test_the_gradient_is_that_of_the_images_and_no_teacher_changes():
    teacher, labels = make_teacher(0), torch.tensor([0, 1, 2])
    images = torch.randn(3, 1, 8, 8)
    objective = weighted_objective(global_weight=1.0, class_wise_weight=1.0, every_layer=True, classifier_weight=1.0)
    before = {name: value.clone() for name, value in teacher.network.state_dict().items()}
    group = group_labels([Group(0, 0, labels, labels)], torch.device("cpu"))
    gradient, _ = Passes(objective, Engine(torch.device("cpu")))(images, group, teacher)
    # against finite differences, in the direction of the gradient
    step = 1e-2 * gradient / gradient.norm()
    above, below = (sum(terms_of(objective, images + way, labels, teacher).values()) for way in (step, -step))
    assert (above - below) / 2e-2 == pytest.approx(gradient.norm().item(), rel=1e-2)
    assert gradient.flatten(1).norm(dim=1).min() > 0
    assert all(parameter.grad is None for parameter in teacher.network.parameters())
    assert all(torch.equal(before[name], value) for name, value in teacher.network.state_dict().items())


def test_descending_the_objective_brings_statistics_and_labels_closer():
    teacher, labels = make_teacher(1), torch.tensor([0, 1, 2])
    images = torch.randn(3, 1, 8, 8)
    optimizer = torch.optim.Adam([images], lr=0.05)
    objective = weighted_objective(global_weight=1.0, class_wise_weight=0.0, every_layer=False, classifier_weight=1.0)
    group = group_labels([Group(0, 0, labels, labels)], torch.device("cpu"))
    compute = Passes(objective, Engine(torch.device("cpu")))
    first = terms_of(objective, images, labels, teacher)
    for _ in range(60):
        images.grad = compute(images, group, teacher).gradient
        optimizer.step()
    last = terms_of(objective, images, labels, teacher)
    assert last["global"] < 0.9 * first["global"]
    assert F.cross_entropy(teacher.network(images), labels) < first["classifier"]


def test_the_table_is_not_empty_and_says_what_each_method_is():
    assert {"teddy", "random"} <= set(METHODS)
    assert all(method.summary for method in METHODS.values())


def test_sre2l_counts_the_first_layer_tenfold():
    teacher, labels, images = make_teacher(0), torch.tensor([0, 1, 2]), torch.randn(3, 1, 8, 8)
    objective = METHODS["sre2l"].objective
    assert objective is not None
    both, weighted = (
        terms_of(made, images, labels, teacher)["global"]
        for made in (TEDDY_ALONE, objective(MethodSettings(statistics="both")))
    )
    first = batch_norms(teacher.network)[0]
    convolution = next(layer for layer in teacher.network.modules() if isinstance(layer, nn.Conv2d))
    variance, mean = torch.var_mean(convolution(images), dim=(0, 2, 3), correction=0)
    own = (mean - first.running_mean).norm() + (variance - first.running_var).norm()
    assert weighted - both == pytest.approx(9 * float(own), rel=1e-4)
    assert set(terms_of(objective(MethodSettings(statistics="both")), images, labels, teacher)) == {
        "global", "classifier",
    }  # fmt: skip
