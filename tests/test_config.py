import pytest

from teddy.config import Config, PoolSettings, TeacherTrainingSettings
from teddy.errors import TeddyError
from teddy.parsing import parse_assignment, parse_config, parse_yaml, put

NEEDED = {"data": {"source": "digits"}, "ipc": 1}


def parse(**changes: object) -> Config:
    tree: dict[str, object] = {}
    for path, value in (NEEDED | changes).items():
        put(tree, path.replace("__", "."), value)
    return parse_config(tree)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        # Every stage range of the paper's appendix, and the sizes of pool it gives for them.
        (1, 41, [1, 6, 11, 16, 21, 26, 31, 36, 41]),
        (21, 61, [21, 26, 31, 36, 41, 46, 51, 56, 61]),
        (31, 71, [31, 36, 41, 46, 51, 56, 61, 66, 71]),
        (11, 46, [11, 16, 21, 26, 31, 36, 41, 46]),
        (16, 50, [16, 21, 26, 31, 36, 41, 46, 50]),
    ],
)
def test_the_papers_pools(first: int, last: int, expected: list[int]):
    training = TeacherTrainingSettings(epochs=90)
    assert list(PoolSettings(first=first, last=last, every=5, training=training).snapshots) == expected


def test_the_defaults_are_the_papers_for_tiny_imagenet():
    config = parse()
    assert (config.pool.training.learning_rate, config.pool.training.batch_size) == (0.2, 256)
    assert (config.method.iterations, config.method.learning_rate, config.method.weight_decay) == (4000, 0.1, 1e-4)
    assert (config.method.teachers, config.method.global_weight, config.method.classes_per_group) == (3, 1.0, 100)
    student = config.evaluation.training
    assert (student.optimizer, student.learning_rate, student.weight_decay, student.epochs) == (
        "adamw",
        1e-3,
        0.01,
        100,
    )


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("method__iteratoins", 5, "unknown key 'method.iteratoins'; did you mean 'method.iterations'"),
        ("pool__training__lr", 5, "unknown key 'pool.training.lr'"),
        ("colour", "red", "unknown key 'colour'; known: data, device"),
        ("method__iterations", "many", "method.iterations: input should be a valid integer, not 'many'"),
        ("method__iterations", 2.5, "method.iterations: input should be a valid integer.*not 2.5"),
        ("method__iterations", True, "method.iterations: input should be a valid integer, not True"),
        ("method__redraw", "yes", "method.redraw: input should be a valid boolean, not 'yes'"),
        (
            "method__statistics",
            "globl",
            "method.statistics: input should be 'global', 'class-wise' or 'both', not 'globl'",
        ),
        ("ipc", 0, "ipc: input should be greater than or equal to 1, not 0"),
        ("ipc", -3, "ipc: input should be greater than or equal to 1, not -3"),
        ("method__learning_rate", 0, "method.learning_rate: input should be greater than 0, not 0"),
        ("relabel__augment__flip", 1.5, "relabel.augment.flip: input should be less than or equal to 1, not 1.5"),
        ("relabel__augment__crop", [0.9, 0.1], "relabel.augment: crop: the first bound 0.9 is above the second 0.1"),
        ("relabel__augment__crop", [0.9], "relabel.augment.crop.1: is needed"),
        ("relabel__teachers", "some", "relabel.teachers: input should be"),
        ("relabel__teachers", 9, "relabel.teachers: takes 9 of a pool of 8"),
        ("relabel__at_once", 9, "relabel.at_once: takes 9 of 8 teachers that label"),
        ("relabel", {"teachers": 3, "at_once": 4}, "relabel.at_once: takes 4 of 3 teachers that label"),
        ("relabel", {"at_once": 1, "labels": "stored", "budget_mb": 9}, "relabel: at_once: epochs that are used again"),
        ("relabel", {"at_once": 1, "labels": "stored", "stored_epochs": 9}, "relabel: at_once: epochs that are used"),
        ("method__teachers", 9, "method.teachers: draws 9 of a pool of 8"),
        ("pool__last", 51, "pool: last: 51 is beyond the 50 of training.epochs"),
        ("pool__first", 47, "pool: first: 47 is after last, 46"),
        ("pool__training__warmup_epochs", 50, "pool.training: warmup_epochs: 50 leaves nothing of 50 epochs"),
        ("device", "gpu", "device: string should match pattern"),
        ("evaluation__networks", [], "evaluation.networks: "),
    ],
)
def test_a_mistake_is_one_line_with_its_path(path: str, value: object, message: str):
    with pytest.raises(TeddyError, match=message) as caught:
        parse(**{path: value})
    assert "\n" not in str(caught.value)


def test_an_objective_without_any_weight_is_an_error():
    with pytest.raises(TeddyError, match="nothing to minimise"):
        parse(method__statistics="class-wise", method__class_wise_weight=0.0, method__classifier_weight=0.0)


@pytest.mark.parametrize("other", [{"pool__generation": "post"}, {"pool__weights": "mine.safetensors"}])
def test_several_bases_are_for_random_starts(other: dict[str, object]):
    assert parse(pool__bases=3).pool.size == 3 * 8
    with pytest.raises(TeddyError, match="pool: bases: 3 are for prior generation"):
        parse(pool__bases=3, **other)


def test_what_is_missing_is_named():
    with pytest.raises(TeddyError, match="ipc: is needed and not given"):
        parse_config({"data": {"source": "digits"}})


def test_a_configuration_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        parse().method.iterations = 5  # type: ignore[misc]


def test_the_resolved_file_gives_the_same_configuration():
    config = parse(method__augment__crop=[0.3, 1.0], relabel__teachers=3, evaluation__training__ema=0.99)
    assert parse_config(parse_yaml(config.to_yaml())) == config


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("a.b=1e-4", ("a.b", 1e-4)),
        ("a=5E3", ("a", 5000.0)),
        ("a=[0.1, 1]", ("a", [0.1, 1])),
        ("a=null", ("a", None)),
        ("a=x=y", ("a", "x=y")),
        ("a=1.5", ("a", 1.5)),
        ("a={flip: 0.5}", ("a", {"flip": 0.5})),
    ],
)
def test_assignments_are_yaml_as_people_write_it(assignment: str, expected: object):
    assert parse_assignment(assignment) == expected


@pytest.mark.parametrize("assignment", ["iterations", "=5", "a=[1"])
def test_a_malformed_assignment_is_an_error(assignment: str):
    with pytest.raises(TeddyError, match="--set"):
        parse_assignment(assignment)


def test_a_value_has_no_further_keys():
    with pytest.raises(TeddyError, match="'ipc' holds a value"):
        put({"ipc": 1}, "ipc.more", 2)


def test_yaml_cannot_run_anything():
    with pytest.raises(Exception, match="could not determine a constructor"):
        parse_yaml("!!python/object/apply:os.system ['true']")


def test_class_means_that_are_drawn_need_none_that_are_measured():
    drawn = {"method__statistics": "both", "method__targets": "drawn", "pool__class_means": False}
    assert parse(**drawn).method.targets == "drawn"
    with pytest.raises(TeddyError, match=r"pool.class_means: .*set method.targets=drawn"):
        parse(**drawn | {"method__targets": "measured"})
    with pytest.raises(TeddyError, match="targets: 'drawn' are for class means"):
        parse(**drawn | {"method__statistics": "global"})


@pytest.mark.parametrize("weight", ["map_weight", "variance_weight", "readout_weight"])
def test_what_is_compared_with_real_images_needs_targets_that_are_drawn(weight: str):
    assert parse(**{"method__statistics": "both", "method__targets": "drawn", f"method__{weight}": 1.0})
    with pytest.raises(TeddyError, match=f"{weight}: only for real images that are drawn; set targets to drawn"):
        parse(**{"method__statistics": "both", f"method__{weight}": 1.0})
