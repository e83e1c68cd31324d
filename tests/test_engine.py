"""How things are computed: what the engine chooses, and that compiled training and labelling do the same."""

import copy
from collections.abc import Iterator
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from teddy.config import EngineSettings, Optimizer
from teddy.data.loaders import Batch
from teddy.data.source import Task
from teddy.engine import WORTH_CAPTURING, WORTH_COMPILING, Engine, choose_engine, side_by_side
from teddy.matching.labels import cross_entropy, ensemble
from teddy.models.layers import batch_norms
from teddy.models.several import Several
from teddy.models.zoo import build_network
from teddy.optimizers import make_optimizer
from teddy.relabel import make_ensemble
from teddy.training import MovingAverage, Training, make_stepper, of_each

CPU = torch.device("cpu")
COMPILED = Engine(CPU, compiles=True, backend="aot_eager")
TASK = Task(3, 1, 16)


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_on_a_cpu_everything_is_plain():
    assert choose_engine(EngineSettings(), CPU) == Engine(CPU)


@pytest.mark.parametrize(
    ("settings", "half", "compiles"),
    [
        (EngineSettings(precision="bfloat16"), True, False),
        (EngineSettings(precision="float32", compile=True), False, True),
    ],
)
def test_what_is_set_is_done(settings: EngineSettings, half: bool, compiles: bool):
    engine = choose_engine(settings, CPU)
    assert (engine.half, engine.compiles, engine.captures) == (half, compiles, False)


@pytest.mark.parametrize(("half", "tolerance"), [(False, 1e-5), (True, 0.02)])
def test_on_a_cpu_a_placed_network_computes_pixel_by_pixel_and_the_same(half: bool, tolerance: float):
    torch.manual_seed(0)
    network, images = build_network("convnet-d2-w16-bn", TASK).eval(), torch.randn(6, 1, 16, 16)
    expected, engine = network(images), Engine(CPU, half=half)
    placed = engine.place(network)
    with engine.autocast():
        features = placed.features(images)
        torch.testing.assert_close(placed(images).float(), expected, rtol=tolerance, atol=tolerance)
    assert features.is_contiguous(memory_format=torch.channels_last)


def test_what_cannot_be_compiled_is_computed_all_the_same():
    def asking(values: Tensor) -> Tensor:
        return values + 1 if values.sum().item() > 0 else values - 1  # the branch depends on data

    compiled = COMPILED.compiled(asking)
    with pytest.warns(RuntimeWarning, match="not compiled, slower"):
        assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert compiled(-torch.ones(2)).tolist() == [-2.0, -2.0]  # and is not tried again


@pytest.mark.parametrize("kind", WORTH_COMPILING)
def test_short_work_is_not_prepared_for(kind: str):
    device = torch.device(kind)
    engine = Engine(device, half=True, compiles=True, captures=True, fuses=True)
    assert engine.for_steps(WORTH_COMPILING[kind]) == engine
    assert engine.for_steps(WORTH_COMPILING[kind] - 1) == Engine(device, half=True, captures=True)
    assert engine.for_steps(WORTH_CAPTURING - 1) == Engine(device, half=True)


def test_frozen_weights_are_cast_once_and_statistics_are_not():
    network = build_network("convnet-d1-w4-bn", TASK)
    weights = Engine(CPU, half=True).frozen_weights(network, "network.")
    assert weights["network.features.0.weight"].dtype == torch.bfloat16
    assert weights["network.features.1.running_var"].dtype == torch.float32
    assert network.features[0].weight.dtype == torch.float32
    assert all(value.dtype != torch.bfloat16 for value in Engine(CPU).frozen_weights(network).values())


def test_pieces_come_back_in_order():
    assert side_by_side([lambda k=k: torch.tensor(k) for k in range(3)], Engine(CPU)) == [0, 1, 2]


@pytest.mark.parametrize("engine", [COMPILED, Engine(CPU, half=True)])
def test_labels_are_those_of_the_plain_ensemble(engine: Engine):
    torch.manual_seed(0)
    networks = [build_network("convnet-d2-w16-bn", TASK).eval() for _ in range(3)]
    images = torch.randn(5, 1, 16, 16)
    with torch.no_grad():
        expected = ensemble(torch.stack([network(images) for network in networks]), "logits", 1.0)
    labels = make_ensemble(networks, "logits", 1.0, engine)(images)
    assert labels.dtype == torch.float32
    torch.testing.assert_close(labels, expected, rtol=0.02, atol=0.02 if engine.half else 1e-5)


@pytest.mark.parametrize("engine", [COMPILED, Engine(CPU)])
def test_labels_by_the_statistics_of_the_batch_are_those_of_training(engine: Engine):
    torch.manual_seed(0)
    network = build_network("convnet-d2-w16-bn", TASK).eval()
    images, before = torch.randn(5, 1, 16, 16), copy.deepcopy(network.state_dict())
    labels = make_ensemble([network], "logits", 1.0, engine, "batch")(images)
    torch.testing.assert_close(network.state_dict(), before)
    with torch.no_grad():
        torch.testing.assert_close(labels, network.train()(images), rtol=0.02, atol=0.02 if engine.half else 1e-5)


def loss(logits: Tensor, batch: Batch) -> Tensor:
    return cross_entropy(logits, batch.targets)


@pytest.mark.parametrize("ema", [None, 0.9])
def test_compiled_steps_train_the_same_network(ema: float | None):
    torch.manual_seed(0)
    start = build_network("convnet-d2-w16-bn", TASK).train()
    batches = [Batch(torch.randn(6, 1, 16, 16), torch.eye(3).repeat(2, 1)) for _ in range(4)]
    results: list[nn.Module] = []
    for engine in (Engine(CPU), COMPILED):
        network = copy.deepcopy(start)
        optimizer = make_optimizer("adamw", network, learning_rate=0.01, weight_decay=0.1, momentum=0.0)
        training = Training(network, optimizer, MovingAverage(network, ema) if ema else None)
        step = make_stepper(training, loss, engine)
        losses = [float(step(batch)) for batch in batches]
        assert losses[-1] != losses[0]
        results.append(training.result)
    for (name, plain), other in zip(results[0].state_dict().items(), results[1].state_dict().values(), strict=True):
        torch.testing.assert_close(other, plain, msg=name)


@pytest.mark.parametrize("network", ["convnet-d2-w16-bn", "resnet18"])
def test_networks_trained_together_are_compiled_once_and_stay_the_same(network: str):
    torch.manual_seed(0)
    start = [build_network(network, TASK).train() for _ in range(3)]
    batches = [Batch(torch.randn(18, 1, 16, 16), torch.eye(3).repeat(6, 1)) for _ in range(3)]
    results: list[nn.Module] = []
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for engine in (Engine(CPU), COMPILED):
        together = Several(copy.deepcopy(start))
        optimizer = make_optimizer("sgd", together, learning_rate=0.01, weight_decay=0.1, momentum=0.9)
        training = Training(together, optimizer, MovingAverage(together, 0.9))
        step = make_stepper(training, of_each(loss, 3), engine)
        for batch in batches:
            step(batch)
        results += [together, training.result]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1
    for plain, compiled in (results[::2], results[1::2]):
        for (name, value), other in zip(plain.state_dict().items(), compiled.state_dict().values(), strict=True):
            torch.testing.assert_close(other, value, msg=name)
    seen = results[2].state_dict()
    assert [int(value) for name, value in seen.items() if "num_batches" in name] == [3] * (len(batch_norms(results[2])))
    assert not torch.equal(*(next(each.parameters()) for each in results[2].networks[:2]))


def test_networks_trained_together_are_given_fast_layers():
    pytest.importorskip("triton")
    from teddy.models.fast_layers import FastConvolution, with_fast_layers

    torch.manual_seed(0)
    together, images = Several(build_network("resnet18", TASK) for _ in range(2)), torch.randn(8, 1, 16, 16)
    fitted: list[nn.Module] = []

    def fit(network: nn.Module) -> nn.Module:
        fitted.append(with_fast_layers(network))
        return fitted[-1]

    expected = copy.deepcopy(together)(images)
    torch.testing.assert_close(together.prepared(COMPILED, fit)(images), expected)
    (structure,) = fitted
    assert isinstance(structure.conv1, FastConvolution)
    assert structure.conv1.weight.is_meta


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(
    ("name", "optimizer_name"),
    # Muon makes small directions as large as the others: in a ResNet18 many of these are rounding.
    [("convnet-d2-w16-bn", "sgd"), ("resnet18", "sgd"), ("convnet-d2-w16-bn", "muon")],
)
def test_training_on_a_gpu_goes_the_same_way(name: str, optimizer_name: Optimizer):
    torch.manual_seed(0)
    start, batch = build_network(name, TASK).train(), Batch(torch.randn(48, 1, 16, 16), torch.eye(3).repeat(16, 1))
    values, ways = [], []
    for engine in (Engine(CPU), Engine(torch.device("cuda"), half=True, compiles=True, captures=True, fuses=True)):
        network = engine.place(copy.deepcopy(start))
        before = [value.cpu().clone() for value in network.state_dict().values()]
        optimizer = make_optimizer(optimizer_name, network, learning_rate=1e-3, weight_decay=0, momentum=0)
        step = make_stepper(Training(network, optimizer), loss, engine)
        own = Batch(batch.images.to(engine.device), batch.targets.to(engine.device))
        values.append([float(step(own)) for _ in range(6)])  # more than the calls before a step is captured
        after = [value.cpu() for value in network.state_dict().values()]
        ways.append(torch.cat([(new - old).flatten() for old, new in zip(before, after, strict=True) if old.dim()]))
    assert values[1] == pytest.approx(values[0], rel=0.01)
    assert torch.cosine_similarity(*ways, dim=0) > 0.99


@pytest.mark.parametrize("name", get_args(Optimizer))
def test_a_training_that_is_restarted_is_a_new_one(name: str):
    torch.manual_seed(0)
    start = build_network("convnet-d2-w16-bn", TASK).train()
    batches = [Batch(torch.randn(6, 1, 16, 16), torch.eye(3).repeat(2, 1)) for _ in range(4)]
    network = copy.deepcopy(start)
    optimizer = make_optimizer(name, network, learning_rate=0.01, weight_decay=0.1, momentum=0.9)
    training = Training(network, optimizer, MovingAverage(network, 0.9))
    states = []
    for _ in range(2):
        training.restart(start)
        for batch in batches:
            make_stepper(training, loss, Engine(CPU))(batch)
        states.append({key: value.clone() for key, value in training.state().items()})
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
