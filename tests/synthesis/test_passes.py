"""The compiled pass and bf16 against the plain one in fp32: a term that is silently lost would show here."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from teddy.data.source import Task
from teddy.engine import Engine
from teddy.matching.statistics import GroupLabels
from teddy.methods.teddy import weighted_objective
from teddy.models.layers import batch_norms, recorded_layers
from teddy.models.recording import Recorder
from teddy.models.zoo import build_network
from teddy.pool.measuring import running_statistics
from teddy.pool.pool import Teacher, freeze
from teddy.synthesis.passes import Passed, Passes
from teddy.synthesis.real import Real

CPU = torch.device("cpu")
TASK = Task(6, 3, 32)
PLAIN = Engine(CPU)
ENGINES = {
    "compiled": Engine(CPU, compiles=True, backend="aot_eager"),
    "bf16": Engine(CPU, half=True),
    "compiled, bf16": Engine(CPU, half=True, compiles=True, backend="aot_eager"),
}
if find_spec("triton"):
    ENGINES["own kernels"] = Engine(CPU, fuses=True)
    ENGINES["own kernels, compiled, bf16"] = Engine(CPU, half=True, compiles=True, fuses=True, backend="aot_eager")
OBJECTIVE = weighted_objective(global_weight=1.0, class_wise_weight=0.5, every_layer=True, classifier_weight=0.3)
BY_CLASS = weighted_objective(
    global_weight=0.0, class_wise_weight=0.5, every_layer=True, map_weight=0.3, variance_weight=1.0,
    readout_weight=2.0, classifier_weight=0.3,
)  # fmt: skip
LABELS_OF_REAL = GroupLabels(torch.tensor([[0, 3, 5], [1, 2, 4]]), torch.tensor([0, 0, 1, 1, 2, 2]).expand(2, -1))
LABELS = GroupLabels(torch.tensor([[0, 3, 5], [1, 2, 4]]), torch.tensor([[0, 1, 2, 0], [2, 1, 0, 0]]))
IMAGES = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def make_teacher(name: str, seed: int) -> Teacher:
    torch.manual_seed(seed)
    network = build_network(name, TASK)
    if batch_norms(network):
        network.train()(torch.randn(16, 3, 32, 32))  # running statistics that are worth matching
    freeze(network)
    _, inputs = (recorder := Recorder(network))(torch.randn(12, 3, 32, 32))
    recorder.remove()
    kept = running_statistics(network)
    if not kept.means:
        kept = type(kept)(*(tuple(torch.rand(part.shape[1]) for part in inputs[:-1]) for _ in range(2)))
    class_means = tuple(torch.randn(6, part.shape[1]) for part in inputs)
    assert len(inputs) == len(recorded_layers(network))
    return Teacher(f"{name}-{seed}", 0.0, network, kept.means, kept.variances, class_means)


def compare(plain: Passed, other: Passed, *, cosine: float, share: float) -> None:
    assert list(plain.terms) == list(other.terms)
    for term, values in plain.terms.items():
        torch.testing.assert_close(other.terms[term], values, rtol=share, atol=0)
    for a, b in zip(by_group(plain.gradient), by_group(other.gradient), strict=True):
        assert torch.cosine_similarity(a.flatten(), b.flatten(), dim=0) > cosine
        assert float(b.norm()) == pytest.approx(float(a.norm()), rel=0.05)


def by_group(gradient: Tensor) -> Tensor:
    return gradient.unflatten(0, (2, -1))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["convnet-d2-w16-bn", "convnet-d2-w16-in", "resnet18", "torchvision/resnet18"])
def test_losses_and_gradients_agree_with_plain_fp32(name: str, engine: str):
    teacher = make_teacher(name, 0)
    plain = Passes(OBJECTIVE, PLAIN)(IMAGES, LABELS, teacher)
    other = Passes(OBJECTIVE, ENGINES[engine])(IMAGES, LABELS, teacher)
    exact = not ENGINES[engine].half
    compare(plain, other, cosine=0.9999 if exact else 0.99, share=1e-4 if exact else 0.01)


# Triton's interpreter rounds bf16 towards zero, which adds up over the layers; it does not compute as a GPU does.
@pytest.mark.parametrize("engine", [name for name, engine in ENGINES.items() if not (engine.fuses and engine.half)])
@pytest.mark.parametrize("name", ["convnet-d2-w16-bn", "resnet18"])
def test_maps_and_variances_agree_with_plain_fp32_too(name: str, engine: str):
    teacher = make_teacher(name, 0)
    given = IMAGES, LABELS, teacher, Real(torch.randn(12, 3, 32, 32), LABELS_OF_REAL)
    plain, other = (Passes(BY_CLASS, chosen)(*given) for chosen in (PLAIN, ENGINES[engine]))
    exact = not ENGINES[engine].half
    compare(plain, other, cosine=0.9999 if exact else 0.99, share=1e-4 if exact else 0.01)


def test_another_teacher_compiles_nothing():
    compute = Passes(OBJECTIVE, ENGINES["compiled"])
    for seed in range(4):
        teacher = make_teacher("convnet-d2-w16-bn", seed)
        compare(Passes(OBJECTIVE, PLAIN)(IMAGES, LABELS, teacher), compute(IMAGES, LABELS, teacher),
                cosine=0.9999, share=1e-4)  # fmt: skip
    assert counters["stats"]["unique_graphs"] == 1


def test_networks_of_other_widths_have_a_function_of_their_own():
    compute = Passes(OBJECTIVE, ENGINES["compiled"])
    for name in ("convnet-d2-w16-bn", "convnet-d2-w12-bn"):
        teacher = make_teacher(name, 0)
        compare(Passes(OBJECTIVE, PLAIN)(IMAGES, LABELS, teacher), compute(IMAGES, LABELS, teacher),
                cosine=0.9999, share=1e-4)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("fuses", [True, False])
@pytest.mark.parametrize("name", ["convnet-d2-w16-bn", "resnet18", "torchvision/resnet18"])
def test_the_same_on_a_gpu(name: str, fuses: bool):
    device = torch.device("cuda")
    teacher = make_teacher(name, 0)
    plain = Passes(OBJECTIVE, PLAIN)(IMAGES, LABELS, teacher)
    engine = Engine(device, half=True, compiles=True, fuses=fuses)
    engine.place(teacher.network)
    moved = [
        tuple(part.to(device) for part in parts) for parts in (teacher.means, teacher.variances, teacher.class_means)
    ]
    there = Teacher(teacher.name, 0.0, teacher.network, *moved)
    labels = GroupLabels(*(part.to(device) for part in LABELS))
    gradient, terms = Passes(OBJECTIVE, engine)(IMAGES.to(device), labels, there)
    other = Passed(gradient.cpu(), {term: values.cpu() for term, values in terms.items()})
    compare(plain, other, cosine=0.99, share=0.01)
