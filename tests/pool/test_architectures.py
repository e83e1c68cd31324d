"""Every architecture that the pool promises, the whole way: pool, a few synthesis steps, labels; and bit for bit."""

import copy
import shutil

import pytest
import torch
from conftest import OpenRun

from teddy.config import MethodSettings, PoolSettings, TeacherTrainingSettings
from teddy.data.preprocessing import from_histogram, histogram
from teddy.data.source import Images, Source
from teddy.engine import Engine
from teddy.matching.statistics import GroupLabels
from teddy.methods.teddy import weighted_objective
from teddy.models.layers import batch_norms
from teddy.pool import store
from teddy.pool.build import build_pool
from teddy.pool.measuring import Measured, running_statistics
from teddy.pool.pool import Teacher, freeze
from teddy.pool.store import read_index
from teddy.relabel import make_ensemble
from teddy.run import Run
from teddy.synthesis.passes import Passes
from teddy.synthesis.stage import synthesize

CPU = torch.device("cpu")

ARCHITECTURES = [
    "resnet18", "resnet50", "resnet101", "densenet121", "mobilenet_v2", "shufflenet_v2_x1_0", "efficientnet_b0",
    "vgg11_bn", "convnet-bn", "convnet", "vit_b_16", "convnext_tiny", "torchvision/resnet18", "timm/resnet18",
    "timm/vit_tiny_patch16_224", "timm/convnext_atto",
]  # fmt: skip
EVERYTHING = weighted_objective(global_weight=1.0, class_wise_weight=1.0, every_layer=True, classifier_weight=1.0)


@pytest.fixture(scope="module")
def colours() -> Source:
    """Two classes in colour, 6 + 4 images of 32 × 32."""
    generator = torch.Generator().manual_seed(0)

    def images(per_class: int) -> Images:
        labels = torch.arange(2).repeat_interleave(per_class)
        pixels = torch.randint(0, 120, (2 * per_class, 3, 32, 32), generator=generator)
        pixels[labels == 1, 0] += 120
        return Images(pixels.to(torch.uint8), labels)

    train, test = images(6), images(4)
    return Source("colours", ("grey", "red"), train, test, 3, 32, from_histogram(histogram(train.pixels)), "colours")


@pytest.mark.parametrize("generation", ["prior", "post"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_pool_images_labels(
    name: str, generation: str, colours: Source, open_run: OpenRun, monkeypatch: pytest.MonkeyPatch
):
    in_memory: dict[str, Teacher] = {}
    original = store.write_teacher

    def remember(run: Run, member: str, network: torch.nn.Module, measured: Measured, about: object) -> int:
        network = freeze(copy.deepcopy(network))
        kept = running_statistics(network) if batch_norms(network) else measured
        in_memory[member] = Teacher(member, 0.0, network, kept.means, kept.variances, measured.class_means)
        return original(run, member, network, measured, about)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "write_teacher", remember)
    settings = PoolSettings.model_validate(
        {
            "network": name,
            "generation": generation,
            "unit": "iterations",
            "first": 1,
            "last": 1,
            "training": TeacherTrainingSettings(epochs=1, batch_size=12, learning_rate=1e-3),
            "pruning": {"members": 1, "finetuning": {"batch_size": 12, "learning_rates": (1e-3, 1e-3)}},
        }
    )
    run = open_run("run")
    pool = build_pool(settings, colours, run)
    (member,), (teacher,) = read_index(run.folder)["members"], pool.teachers
    _check_the_same_bits(in_memory[member["name"]], teacher)
    if generation == "post":
        _check_narrower(teacher, member["widths"], name, colours)
    method = MethodSettings(teachers=1, iterations=2, statistics="both")
    made = synthesize(method, colours, pool, run, ipc=2)
    start = synthesize(method.model_copy(update={"name": "random"}), colours, pool, open_run("other"), ipc=2)
    assert made.pixels.shape == (4, 3, 32, 32)
    assert not torch.equal(made.pixels, start.pixels)
    labels = make_ensemble([teacher.network], "logits", 1.0, Engine(CPU))(colours.preprocessing.normalise(made.pixels))
    assert labels.shape == (4, 2)
    assert labels.isfinite().all()
    shutil.rmtree(run.folder / "pool")  # some of these are large


def _check_the_same_bits(in_memory: Teacher, read: Teacher) -> None:
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    labels = GroupLabels(torch.tensor([[0, 1]]), torch.tensor([[0, 0, 1, 1]]))
    before, after = (Passes(EVERYTHING, Engine(CPU))(images, labels, teacher).terms for teacher in (in_memory, read))
    assert set(before) == {"global", "class-wise", "classifier"}
    for term in before:
        assert before[term].isfinite()
        assert before[term] > 0
        assert torch.equal(before[term], after[term]), term


def _check_narrower(teacher: Teacher, widths: dict[str, int] | None, name: str, source: Source) -> None:
    from teddy.models.widths import output_widths
    from teddy.models.zoo import build_network
    from teddy.pool.store import count_cost

    whole = build_network(name, source.task)
    assert output_widths(teacher.network) == widths != output_widths(whole)
    assert count_cost(teacher.network, source.task)[0] == pytest.approx(
        0.66 * count_cost(whole, source.task)[0], rel=0.03
    )
