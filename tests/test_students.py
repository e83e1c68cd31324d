"""Students that train at the same time: each becomes what it would have become alone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from teddy import stopping, students
from teddy.config import EvaluationSettings, RelabelSettings
from teddy.data.source import Source, Task
from teddy.distilled import DistilledSet
from teddy.engine import Engine
from teddy.errors import NumbersError, TeddyError
from teddy.evaluation import Results, evaluate_students
from teddy.models.several import Several, as_one, draws_in_training, each_of
from teddy.models.zoo import build_network
from teddy.parsing import parse_config
from teddy.progress import Unwatched
from teddy.relabel import Labelled, make_ensemble
from teddy.run import Run, new_run
from teddy.seeding import derive
from teddy.stored_labels import Form, record
from teddy.students import ROWS, student_groups, student_loader, train_students
from teddy.training import Training

NETWORK = "convnet-d1-w4-bn"
RELABEL = RelabelSettings.model_validate({"augment": {"crop": (0.3, 1.0), "flip": 0.5, "roll": 2}})
CPU = torch.device("cpu")
GRAPHS = Engine(CPU, captures=True)
OpenAtOnce = Callable[..., Run]


def settings_with(**training: Any) -> EvaluationSettings:
    training = {"epochs": 4, "batch_size": 4, "learning_rate": 0.01, **training}
    full_data = {"epochs": 2, "batch_size": 7, "ema": 0.5}
    settings = {"networks": (NETWORK,), "seeds": 5, "full_data_seeds": 3, "hard_share": 0.1}
    return EvaluationSettings.model_validate(settings | {"training": training, "full_data": full_data})


WAYS = {
    "adamw": settings_with(optimizer="adamw"),
    "adamw, averaged": settings_with(optimizer="adamw", ema=0.8),
    "sgd": settings_with(optimizer="sgd", momentum=0.9, weight_decay=0.01),
    "sgd, averaged": settings_with(optimizer="sgd", momentum=0.9, weight_decay=0.01, ema=0.8),
    "muon, averaged": settings_with(optimizer="muon", momentum=0.9, weight_decay=0.01, ema=0.8),
}


@pytest.fixture
def labelled(source: Source) -> Labelled:
    images = source.draw(5, torch.Generator().manual_seed(9))  # ten, in batches of 4, 3 and 3
    torch.manual_seed(3)
    teachers = [build_network(NETWORK, source.task).eval() for _ in range(2)]
    distilled = DistilledSet(images, torch.randn(10, 2), source.classes, source.preprocessing)
    ensemble = make_ensemble(teachers, "logits", 1.0, Engine(CPU))
    return Labelled(distilled, lambda images, _: ensemble(images))


@pytest.fixture
def at_once(tmp_path: Path, quiet: Console) -> Iterator[OpenAtOnce]:
    """Open runs that train so many students at the same time."""
    opened: list[Any] = []

    def start(count: int | str, name: str = "run") -> Run:
        config = parse_config({"data": {"source": "digits"}, "ipc": 1, "engine": {"students": count}})
        opened.append(new_run(tmp_path / f"{name}-{count}", config, bytes_needed=0, console=quiet))
        return opened[-1].__enter__()

    yield start
    for context in opened:
        context.__exit__(None, None, None)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The groups that are trained."""
    groups: list[tuple[int, ...]] = []

    def noting(*given: Any, **more: Any) -> Any:
        groups.append(tuple(given[2]))
        return train_students(*given, **more)

    monkeypatch.setattr("teddy.evaluation.train_students", noting)
    return groups


def trained(row: str, numbers: list[int], settings: EvaluationSettings, labelled: Labelled, source: Source, run: Run):
    return train_students(NETWORK, ROWS[row], numbers, settings, RELABEL, labelled, source, run, Unwatched())


def assert_same(network: nn.Module, other: nn.Module) -> None:
    assert network.state_dict().keys() == other.state_dict().keys()
    for name, value in network.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row", ROWS)
def test_together_each_student_becomes_what_it_becomes_alone(
    row: str, way: str, labelled: Labelled, source: Source, run: Run
):
    numbers = [0, 2, 3]
    alone = [trained(row, [number], WAYS[way], labelled, source, run)[0] for number in numbers]
    together = trained(row, numbers, WAYS[way], labelled, source, run)
    for (network, student), (expected, as_expected) in zip(together, alone, strict=True):
        assert_same(network, expected)
        assert student == as_expected
    seen = [network.state_dict()["features.0.weight"] for network, _ in together]
    assert not torch.equal(seen[0], seen[1])
    assert together[0][0].features[1].running_mean.abs().min() > 0
    assert not list((run.folder / "evaluation").rglob("*.safetensors"))


def test_students_of_a_row_are_trained_in_groups_with_the_same_results(
    labelled: Labelled, source: Source, at_once: OpenAtOnce, noted: list[tuple[int, ...]]
):
    settings = WAYS["adamw, averaged"]
    results = [evaluate_students(settings, RELABEL, labelled, source, at_once(count)) for count in ("auto", 3)]
    assert results[0] == results[1]
    assert noted[:23] == [(number,) for _ in range(4) for number in range(5)] + [(0,), (1,), (2,)]
    assert noted[23:] == [(0, 1, 2), (3, 4)] * 4 + [(0, 1, 2)]


def test_those_that_do_not_fit_into_memory_together_are_halved(
    labelled: Labelled, source: Source, at_once: OpenAtOnce, monkeypatch: pytest.MonkeyPatch
):
    settings, said, tried = WAYS["sgd"], [], []
    expected = evaluate_students(settings, RELABEL, labelled, source, at_once("auto"))

    def short(*given: Any, **more: Any) -> Any:
        tried.append(tuple(given[2]))
        if len(given[2]) > 2:
            raise torch.cuda.OutOfMemoryError("no")
        return train_students(*given, **more)

    monkeypatch.setattr("teddy.evaluation.train_students", short)
    run = at_once(5)
    monkeypatch.setattr(run, "say", said.append)
    assert evaluate_students(settings, RELABEL, labelled, source, run) == expected
    assert tried[:5] == [(0, 1, 2, 3, 4), (0, 1, 2), (0, 1), (2,), (3, 4)]
    assert said[:2] == [f"students: out of memory, going on with {count} at the same time" for count in (3, 2)]


def test_one_that_does_not_fit_is_an_error_that_says_what_to_lower(
    labelled: Labelled, source: Source, run: Run, monkeypatch: pytest.MonkeyPatch
):
    def never(*_: Any, **__: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("no")

    monkeypatch.setattr("teddy.evaluation.train_students", never)
    with pytest.raises(TeddyError, match=rf"{NETWORK}: distilled: .*memory.*; lower evaluation.training.batch_size"):
        evaluate_students(WAYS["sgd"], RELABEL, labelled, source, run)


@pytest.mark.parametrize(
    ("engine", "statistics", "asked"),
    [(Engine(CPU), "running", [4, 4, 4]), (GRAPHS, "running", [12]), (GRAPHS, "batch", [4, 4, 4])],
)
def test_labels_are_made_for_all_at_once_only_where_steps_are_captured_and_it_makes_no_difference(
    engine: Engine, statistics: str, asked: list[int], labelled: Labelled, source: Source
):
    sizes: list[int] = []

    def label(images: Tensor, epoch: int) -> Tensor:
        sizes.append(len(images))
        return labelled.label(images, epoch)

    noting = Labelled(labelled.distilled, label)
    relabel = RELABEL.model_copy(update={"statistics": statistics})
    loader = student_loader(ROWS["distilled"], [0, 1, 2], WAYS["sgd"], relabel, noting, source, seed=0, engine=engine)
    next(loader.epoch(0))
    assert sizes == asked


def test_stored_labels_are_replayed_to_each(labelled: Labelled, source: Source, run: Run):
    form = Form(2)
    single = student_loader(ROWS["distilled"], [7], WAYS["sgd"], RELABEL, labelled, source, seed=0, engine=run.engine)
    stored = Labelled(labelled.distilled, labelled.label, form, record(single, form, 1.0))  # type: ignore[arg-type]
    for row in ("distilled", "random control"):
        alone = [trained(row, [number], WAYS["sgd"], stored, source, run)[0] for number in range(2)]
        for (network, _), (expected, _) in zip(
            trained(row, [0, 1], WAYS["sgd"], stored, source, run), alone, strict=True
        ):
            assert_same(network, expected)


@pytest.mark.parametrize("last", [1, 5, 11])
def test_interrupted_and_taken_up_they_become_the_same(
    last: int, labelled: Labelled, source: Source, at_once: OpenAtOnce, monkeypatch: pytest.MonkeyPatch
):
    settings, run = WAYS["adamw, averaged"], at_once(3)
    expected = trained("random control", [0, 1, 2], settings, labelled, source, at_once(3, "whole"))

    class Stopping(Unwatched):
        steps = 0

        def step(self, count: int = 1, /, **values: Tensor | float) -> None:
            del values
            self.steps += count
            if self.steps == last:
                raise stopping.Stopped(15)

    monkeypatch.setattr(students.Checkpoint, "due", True)
    given = (settings, RELABEL, labelled, source, run)
    with pytest.raises(stopping.Stopped):
        train_students(NETWORK, ROWS["random control"], [0, 1, 2], *given, Stopping())
    assert [path.name for path in (run.folder / students.TRAINING).iterdir()] == [
        f"{NETWORK}-random-soft-0-1-2.safetensors"
    ]
    stage = Stopping()
    stage.steps = -100
    again = train_students(NETWORK, ROWS["random control"], [0, 1, 2], *given, stage)
    assert stage.steps == -100 + 12
    for (network, student), (other, as_expected) in zip(again, expected, strict=True):
        assert_same(network, other)
        assert student == as_expected


def test_what_others_than_before_have_left_goes_with_the_results(
    labelled: Labelled, source: Source, at_once: OpenAtOnce
):
    run = at_once(3)
    run.write_tensors(f"{students.TRAINING}/{NETWORK}-random-soft-0-4.safetensors", {"step": torch.tensor(1)})
    evaluate_students(WAYS["sgd"], RELABEL, labelled, source, run)
    assert not (run.folder / students.TRAINING).exists()


def test_one_that_goes_wrong_does_not_take_the_others_of_its_group_with_it(
    labelled: Labelled, source: Source, at_once: OpenAtOnce, monkeypatch: pytest.MonkeyPatch
):
    settings = WAYS["sgd, averaged"]
    expected = evaluate_students(settings, RELABEL, labelled, source, at_once("auto"))[NETWORK]

    def build(name: str, task: Task) -> nn.Module:
        network = build_network(name, task)
        if torch.initial_seed() == derive(0, "student", NETWORK, 1):
            nn.init.constant_(network.features[0].weight, torch.inf)
        return network

    monkeypatch.setattr(students, "build_network", build)
    run = at_once(3)
    with pytest.raises(NumbersError, match=f"student 1 of {NETWORK}, distilled and 4 more: .* not finite"):
        evaluate_students(settings, RELABEL, labelled, source, run)
    kept: Results = run.read_json("evaluation/results.json")
    for row, row_students in kept[NETWORK].items():
        assert "1" not in row_students
        assert row_students == {number: one for number, one in expected[row].items() if number != "1"}


def group_sizes(
    labelled: Labelled, source: Source, engine: Engine, wanted: Any = "auto", row: str = "distilled", **changed: Any
) -> list[int]:
    settings = settings_with(epochs=changed.pop("epochs", 20))
    source = Source(**{**vars(source), **changed})
    name = changed.get("name", NETWORK)
    return [
        len(group) for group in student_groups(name, ROWS[row], range(10), settings, labelled, source, engine, wanted)
    ]


def test_without_graphs_one_at_a_time_unless_more_are_wanted(labelled: Labelled, source: Source):
    assert group_sizes(labelled, source, Engine(CPU)) == [1] * 10
    assert group_sizes(labelled, source, Engine(CPU, compiles=True)) == [1] * 10
    assert group_sizes(labelled, source, Engine(CPU), wanted=4) == [4, 3, 3]


def test_as_many_at_once_as_fill_a_gpu(labelled: Labelled, source: Source):
    assert group_sizes(labelled, source, GRAPHS) == [5, 5]  # at most 8
    assert group_sizes(labelled, source, GRAPHS, epochs=16) == [1] * 10  # 48 steps are not captured
    assert group_sizes(labelled, source, GRAPHS, image_size=112) == [4, 3, 3]  # 4 · 112² · 4 pixels
    assert group_sizes(labelled, source, GRAPHS, image_size=256) == [1] * 10
    assert group_sizes(labelled, source, GRAPHS, wanted=1) == [1] * 10


def test_streamed_images_and_networks_that_draw_are_for_one_at_a_time(labelled: Labelled, source: Source):
    streamed: Any = {"train": _NotInMemory(len(source.train))}
    assert group_sizes(labelled, source, GRAPHS, 5, "full data") == [5, 5]
    assert group_sizes(labelled, source, GRAPHS, 5, "full data", **streamed) == [1] * 10
    assert group_sizes(labelled, source, GRAPHS, 5, "distilled", **streamed) == [5, 5]
    large: Any = {"image_size": 32, "channels": 3}
    assert group_sizes(labelled, source, GRAPHS, 5, name="mobilenet_v3_small", **large) == [1] * 10


class _NotInMemory:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count


@pytest.mark.parametrize(
    ("name", "draws"),
    [("resnet18", False), ("vgg11", True), ("shufflenet_v2_x0_5", False), ("mobilenet_v3_small", True)],
)
def test_which_networks_draw_in_training(name: str, draws: bool):
    before = torch.get_rng_state()
    assert draws_in_training(name, Task(3, 3, 32)) == draws
    assert torch.equal(before, torch.get_rng_state())


def test_one_network_is_left_as_it_is():
    network = nn.Linear(2, 2)
    assert as_one([network]) is network
    assert each_of(network) == [network]
    both = [nn.Linear(2, 2), nn.Linear(2, 2)]
    assert isinstance(as_one(both), Several)
    assert each_of(as_one(both)) == both


def test_the_loss_that_is_shown_is_the_mean_over_students(labelled: Labelled, source: Source, run: Run):
    class Noting(Unwatched):
        def __init__(self) -> None:
            self.losses: list[float] = []

        def step(self, count: int = 1, /, **values: Tensor | float) -> None:
            del count
            self.losses.append(float(values["loss"]))

    shown = []
    for numbers in ([0], [1], [0, 1]):
        stage = Noting()
        train_students(NETWORK, ROWS["distilled"], numbers, WAYS["sgd"], RELABEL, labelled, source, run, stage)
        shown.append(torch.tensor(stage.losses))
    torch.testing.assert_close(shown[2], (shown[0] + shown[1]) / 2)


def test_what_was_prepared_for_some_serves_the_next(labelled: Labelled, source: Source, run: Run):
    places: students.Places = {}
    for row in ("distilled", "random control", "distilled, hard labels", "random control, hard labels"):
        for numbers in ([0, 1], [2, 3], [4]):
            at_once = train_students(
                NETWORK, ROWS[row], numbers, WAYS["sgd"], RELABEL, labelled, source, run, Unwatched(), places
            )
            again = trained(row, numbers, WAYS["sgd"], labelled, source, run)
            for (network, _), (expected, _) in zip(at_once, again, strict=True):
                assert_same(network, expected)
    assert set(places) == {(NETWORK, False, 2), (NETWORK, False, 1)}
    assert all(isinstance(place, Training) and len(place.steppers) == 2 for place in places.values())  # soft and hard
