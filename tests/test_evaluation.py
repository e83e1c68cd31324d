"""Fairness by construction: what differs between the rows, and what does not."""

import math

import pytest
import torch
from torch import Tensor

from teddy import evaluation, students
from teddy.config import EvaluationSettings, RelabelSettings
from teddy.data.loaders import Batch, Loader
from teddy.data.source import Source
from teddy.distilled import DistilledSet
from teddy.errors import NumbersError
from teddy.evaluation import Score, evaluate_students
from teddy.relabel import Labelled
from teddy.report.table import result_lines, time_saved
from teddy.run import Run
from teddy.students import ROWS
from teddy.training import Training

SETTINGS = EvaluationSettings.model_validate(
    {
        "networks": ("convnet-d1-w4-bn",),
        "seeds": 2,
        "training": {"epochs": 2},
        "full_data": {"epochs": 1},
    }
)


@pytest.fixture
def labelled(source: Source) -> Labelled:
    images = source.draw(3, torch.Generator().manual_seed(9))
    distilled = DistilledSet(images, torch.randn(6, 2), source.classes, source.preprocessing)
    return Labelled(distilled, lambda batch, _: batch.flatten(1)[:, :2])


def test_scores_by_hand():
    score = Score.of([90.0, 92.0, 94.0])
    assert (score.mean, score.deviation, score.n) == (92.0, 2.0, 3)
    gain, error = score.over(Score.of([80.0, 81.0]))
    assert gain == pytest.approx(11.5)
    assert error == pytest.approx(math.sqrt(4 / 3 + 0.5 / 2))
    assert math.isnan(Score.of([90.0]).deviation)


def test_the_table_has_every_row_with_mean_deviation_n_and_ior(labelled: Labelled, source: Source, run: Run):
    results = evaluate_students(SETTINGS, RelabelSettings(), labelled, source, run)
    lines = {line.row: line for line in result_lines(results, "convnet-d1-w4-bn")}
    assert list(lines) == list(ROWS)
    assert [line.n for line in lines.values()] == [2, 2, 2, 2, 1]
    for row in ("distilled", "distilled, hard labels"):
        control = results["convnet-d1-w4-bn"][row.replace("distilled", "random control")]
        own = results["convnet-d1-w4-bn"][row]
        gain = sum(own[k]["accuracy"] - control[k]["accuracy"] for k in "01") / 2
        assert lines[row].ior.split(" ± ")[0] == f"{gain:+.1f}"
    assert lines["random control"].ior == ""
    assert "±" not in lines["full data"].accuracy


def test_all_rows_but_the_full_data_train_in_the_same_way(
    labelled: Labelled, source: Source, run: Run, monkeypatch: pytest.MonkeyPatch
):
    seen: list[tuple[object, Loader, object]] = []

    def note(settings: object, training: Training, loader: Loader, *_: object, **given: object) -> object:
        seen.append((settings, loader, [parameter.clone() for parameter in training.network.parameters()]))
        return original(settings, training, loader, *_, **given)

    original = students.train_as
    monkeypatch.setattr(students, "train_as", note)
    evaluate_students(SETTINGS, RelabelSettings(), labelled, source, run)
    rows = {name: seen[2 * place : 2 * place + 2] for place, name in enumerate(ROWS)}
    for number in range(2):
        reference = rows["distilled"][number]
        for name in list(ROWS)[:4]:
            training, loader, weights = rows[name][number]
            assert training == reference[0]
            assert loader.seed == reference[1].seed
            assert loader.cutmix_alpha == reference[1].cutmix_alpha == 1.0
            assert len(loader.images) == 6
            assert torch.equal(loader.images.labels, reference[1].images.labels)
            assert all(torch.equal(a, b) for a, b in zip(weights, reference[2], strict=True))
            assert (loader.label is labelled.label) == (ROWS[name].labels == "soft")
    controls = [rows["random control"][number][1].images.pixels for number in range(2)]
    assert not torch.equal(*controls)  # each seed draws its own
    assert torch.equal(controls[0], rows["random control, hard labels"][0][1].images.pixels)
    assert len(rows["full data"][0][1].images) == len(source.train)


def test_students_that_are_there_are_not_trained_again(
    labelled: Labelled, source: Source, run: Run, monkeypatch: pytest.MonkeyPatch
):
    first = evaluate_students(SETTINGS, RelabelSettings(), labelled, source, run)
    trained = []
    original = evaluation.train_students
    monkeypatch.setattr(
        evaluation, "train_students", lambda *given, **more: trained.append(1) or original(*given, **more)
    )
    assert evaluate_students(SETTINGS, RelabelSettings(), labelled, source, run) == first
    assert not trained
    more = evaluate_students(SETTINGS.model_copy(update={"seeds": 3}), RelabelSettings(), labelled, source, run)
    assert len(trained) == 4  # one for each row but the full data
    assert more["convnet-d1-w4-bn"]["distilled"]["0"] == first["convnet-d1-w4-bn"]["distilled"]["0"]


@pytest.mark.parametrize(("asked", "trained"), [(1, 1), (9, 2)])
def test_rows_with_hard_labels_may_have_fewer_students(
    labelled: Labelled, source: Source, run: Run, asked: int, trained: int
):
    fewer = SETTINGS.model_copy(update={"hard_seeds": asked})
    (rows,) = evaluate_students(fewer, RelabelSettings(), labelled, source, run).values()
    assert {row: len(students) for row, students in rows.items() if row != "full data"} == {
        "distilled": 2, "random control": 2, "distilled, hard labels": trained, "random control, hard labels": trained,
    }  # fmt: skip


@pytest.mark.parametrize("labels", ["soft", "hard"])
def test_rows_of_one_kind_of_labels_come_with_their_control(labelled: Labelled, source: Source, run: Run, labels: str):
    one_kind = SETTINGS.model_copy(update={"labels": (labels,), "full_data_seeds": 0})
    results = evaluate_students(one_kind, RelabelSettings(), labelled, source, run)
    distilled, control = result_lines(results, "convnet-d1-w4-bn")
    assert [ROWS[line.row].images for line in (distilled, control)] == ["distilled", "random"]
    assert {ROWS[line.row].labels for line in (distilled, control)} == {labels}
    assert distilled.ior
    assert len(time_saved(results, "convnet-d1-w4-bn")) == 1


def test_the_final_accuracy_is_the_last_epochs(labelled: Labelled, source: Source, run: Run):
    results = evaluate_students(SETTINGS, RelabelSettings(), labelled, source, run)
    for row in results["convnet-d1-w4-bn"].values():
        for student in row.values():
            assert student["accuracy"] == student["curve"][-1][1]
    assert [step for step, _ in results["convnet-d1-w4-bn"]["distilled"]["0"]["curve"]] == [1, 2]


@pytest.mark.parametrize("share", [0.0, 0.25])
@pytest.mark.parametrize("kind", ["kl", "mse"])
def test_the_soft_losses_by_hand(kind: str, share: float):
    logits, teacher = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    batch = Batch(torch.zeros(1), torch.tensor([[1.0, 0.0]]), teacher)
    p = 1 / (1 + math.exp(-0.5))  # of the larger logit at temperature 2
    soft = 4 * (p * math.log(p / (1 - p)) + (1 - p) * math.log((1 - p) / p)) if kind == "kl" else 1.0
    hard = math.log(1 + math.exp(-1.0))
    value: Tensor = students._soft_loss(kind, share, 2.0)(logits, batch)
    assert value.item() == pytest.approx(soft + share * hard, rel=1e-5)


def test_results_survive_in_the_run_folder(labelled: Labelled, source: Source, run: Run):
    results = evaluate_students(SETTINGS, RelabelSettings(), labelled, source, run)
    assert run.read_json("evaluation/results.json") == results


def test_a_student_that_goes_wrong_does_not_take_the_others_with_it(labelled: Labelled, source: Source, run: Run):
    training = SETTINGS.training.model_copy(update={"learning_rate": 1e30, "optimizer": "sgd"})
    settings = SETTINGS.model_copy(update={"training": training})
    with pytest.raises(NumbersError, match=r"student 0 of convnet-d1-w4-bn, distilled and \d+ more: .* not finite"):
        evaluate_students(settings, RelabelSettings(), labelled, source, run)
    kept = run.read_json("evaluation/results.json")["convnet-d1-w4-bn"]
    assert [row for row in kept if kept[row]] == ["full data"]
