"""Real images that synthesis compares with: which are drawn, and that they are augmented as those made are."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from teddy.config import MethodSettings
from teddy.data.augment import Change, draw_change
from teddy.data.source import Source
from teddy.engine import Engine
from teddy.matching.statistics import GroupLabels
from teddy.methods.teddy import weighted_objective
from teddy.models.convnet import ConvNet
from teddy.pool.pool import Pool, Teacher, freeze
from teddy.progress import Unwatched
from teddy.synthesis.groups import make_groups
from teddy.synthesis.passes import Passed, Passes
from teddy.synthesis.real import Real, RealImages, real_images
from teddy.synthesis.steps import synthesize_images

CPU = torch.device("cpu")
CLASSES = torch.tensor([[1, 0], [0, 1]])


def test_images_of_the_classes_asked_for_are_drawn_one_class_after_the_other(source: Source):
    real = RealImages(source, 5, CPU)
    own = [source.preprocessing.normalise(source.train.pixels[source.train.labels == label]) for label in range(2)]
    generator, seen = torch.Generator().manual_seed(0), set()
    for _ in range(40):
        drawn = real.draw(torch.tensor([1, 0]), generator)
        assert drawn.shape == (10, 1, 8, 8)
        for place, label in enumerate((1, 0)):
            for image in drawn[5 * place : 5 * place + 5]:
                (row,) = (own[label] == image).flatten(1).all(1).nonzero().flatten().tolist()
                seen.add((label, row))
    assert len(seen) == 24  # all of them sooner or later
    again = real.draw(torch.tensor([1, 0]), torch.Generator().manual_seed(0))
    assert torch.equal(again, real.draw(torch.tensor([1, 0]), torch.Generator().manual_seed(0)))


def test_a_class_of_fewer_images_gives_some_more_than_once(source: Source):
    few = replace(source, train=source.train.take(torch.tensor([0, 12, 13])))
    drawn = RealImages(few, 4, CPU).draw(torch.tensor([0, 1]), torch.Generator())
    assert len(drawn[:4].unique(dim=0)) == 1
    assert len(drawn[4:].unique(dim=0)) <= 2


def test_labels_say_which_class_of_the_group_each_one_is_of(source: Source):
    labels = RealImages(source, 3, CPU).labels(CLASSES)
    assert labels.labels.tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1]
    part = Real(torch.arange(12.0).view(12, 1, 1, 1), labels).of(torch.tensor([1]))
    assert part.images.flatten().tolist() == [6, 7, 8, 9, 10, 11]
    assert part.labels.labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_they_are_drawn_where_the_method_says_so(source: Source):
    settings = MethodSettings(statistics="both", targets="drawn", real_images=7)
    drawn = real_images(settings, source, CPU)
    assert drawn is not None
    assert drawn.per_class == 7
    assert real_images(MethodSettings(), source, CPU) is None


@pytest.mark.parametrize("shared", [True, False])
def test_a_change_that_is_shared_is_that_of_the_real_images_too(shared: bool, source: Source):
    single = replace(source, train=source.train.take(torch.tensor([0, 12])))  # so that what is drawn is known
    seen: list[tuple[Tensor, Tensor]] = []
    start = single.preprocessing.normalise(single.train.pixels)

    def note(images: Tensor, labels: GroupLabels, teacher: Teacher, real: Real | None) -> Passed:
        del teacher
        assert real is not None
        assert labels.labels.tolist() == real.labels.labels.tolist() == [0, 1]
        seen.append((images, real.images))
        return Passed(torch.zeros_like(images), {"nothing": torch.zeros(1)})

    synthesize(start, note, single, shared=shared, iterations=6)
    alike = [torch.equal(images, real) for images, real in seen]
    assert all(alike) if shared else not any(alike)
    assert not any(torch.equal(images, start) for images, _ in seen)


def synthesize(start: Tensor, compute: object, source: Source, *, shared: bool = False, **changes: object) -> Tensor:
    options = {
        "bounds": source.preprocessing.bounds(start), "iterations": 4, "learning_rate": 0.1, "weight_decay": 0.0,
        "change": partial(changed, shared), "teachers": 1, "redraw": False, "in_turn": False, "seed": 0,
        "stage": Unwatched(), "device": CPU, "real": RealImages(source, 1, CPU),
        "groups": make_groups(2, len(start) // 2, classes_per_group=2, images_per_class=1),
    }  # fmt: skip
    return synthesize_images(start, pool=Pool((make_teacher(),)), compute=compute, **(options | changes))  # type: ignore[arg-type]


def changed(shared: bool, count: int, generator: torch.Generator) -> Change:
    return draw_change(count, 8, 8, generator, crop=(0.3, 0.9), flip=0.5, shared=shared)


def make_teacher() -> Teacher:
    torch.manual_seed(0)
    network = ConvNet(depth=2, width=5, norm="bn", num_classes=2, channels=1, image_size=8)
    return Teacher("t", 0.0, freeze(network))


OBJECTIVE = weighted_objective(global_weight=0.0, class_wise_weight=1.0, every_layer=False, classifier_weight=0.0)


def test_targets_are_the_class_means_of_what_was_drawn():
    network = make_teacher().network
    images, labels = torch.randn(8, 1, 8, 8), GroupLabels(CLASSES, torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1]]))
    compute, made = Passes(OBJECTIVE, Engine(CPU)), torch.randn(4, 1, 8, 8)
    made_labels = GroupLabels(CLASSES, torch.tensor([[0, 1], [0, 1]]))
    passed = compute(made, made_labels, Teacher("t", 0.0, network), Real(images, labels))
    features, real = network.features(made).flatten(1), network.features(images).flatten(1)
    expected = [
        sum((features[2 * g + c] - real[4 * g + 2 * c : 4 * g + 2 * c + 2].mean(0)).norm() for c in range(2)) / 2
        for g in range(2)
    ]
    torch.testing.assert_close(passed.terms["class-wise"], torch.stack(expected))


def test_maps_and_variances_are_those_of_what_was_drawn():
    network = make_teacher().network
    images, made = torch.randn(8, 1, 8, 8), torch.randn(8, 1, 8, 8)
    labels = GroupLabels(CLASSES, torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1]]))
    objective = weighted_objective(
        global_weight=0.0, class_wise_weight=0.0, every_layer=False, map_weight=2.0, variance_weight=3.0,
        classifier_weight=0.0,
    )  # fmt: skip
    passed = Passes(objective, Engine(CPU))(made, labels, Teacher("t", 0.0, network), Real(images, labels))
    assert list(passed.terms) == ["maps", "variances"]
    maps = [network.features[:4](given).view(4, 2, -1).mean(1) for given in (made, images)]
    variances = [network.features(given).view(4, 2, -1).var(1, correction=0) for given in (made, images)]
    for term, weight, (ours, theirs) in (("maps", 2, maps), ("variances", 3, variances)):
        torch.testing.assert_close(passed.terms[term], weight * (ours - theirs).norm(dim=1).view(2, 2).mean(1))
    assert torch.isfinite(passed.gradient).all()
    assert passed.gradient.abs().sum() > 0


def test_images_come_to_have_the_features_of_real_ones(source: Source):
    start = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    start = start.clamp(*source.preprocessing.bounds(start))
    compute, gaps = Passes(OBJECTIVE, Engine(CPU)), []

    def note(*given: object) -> Passed:
        passed = compute(*given)  # type: ignore[arg-type]
        gaps.append(float(passed.terms["class-wise"].mean()))
        return passed

    groups = make_groups(2, 4, classes_per_group=2, images_per_class=4)
    plenty = RealImages(source, 30, CPU)
    synthesize(start, note, source, groups=groups, iterations=80, real=plenty, change=lambda *_: Change())  # fmt: skip
    assert sum(gaps[-5:]) < 0.7 * sum(gaps[:5])


def test_what_is_drawn_does_not_depend_on_the_groups_beside(source: Source):
    start = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    compute = Passes(OBJECTIVE, Engine(CPU))
    groups = make_groups(2, 4, classes_per_group=2, images_per_class=1)
    together = synthesize(start, compute, source, groups=groups, at_once=4, real=RealImages(source, 3, CPU))
    for group in groups:
        alone = synthesize(start, compute, source, groups=[group], real=RealImages(source, 3, CPU))
        assert torch.equal(alone[group.rows], together[group.rows])
