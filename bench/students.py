"""Students with labels online from a pool: milliseconds a step, ours and the usual way's.

    python bench/students.py [--network resnet18] [--size 64] [--batch 50] [--teachers 8] [--steps 200] [--at-once 1]
        [--optimizer adamw] [--json FILE]

The usual way: eager bf16, one teacher after the other. Both include augmentation, CutMix and the moving average of the
weights. Then ours with 2, 4 and 8 times as many steps; and with `--at-once K`, K students at the same time on batches
that are made together, counted by what a step of one of them takes.
"""

from functools import partial

import torch
from gpu import arguments, matrix_rate, peak_gib, prepared, report, seconds_of, some_pool

from teddy.config import EngineSettings
from teddy.data.augment import draw_change
from teddy.data.loaders import Batch, Loader
from teddy.data.preprocessing import Preprocessing
from teddy.data.source import Images, Task
from teddy.data.together import together
from teddy.engine import Engine, choose_engine
from teddy.matching.labels import divergence
from teddy.models.several import as_one
from teddy.models.zoo import build_network
from teddy.optimizers import make_optimizer
from teddy.pool.store import count_cost
from teddy.relabel import make_ensemble
from teddy.run import pick_device
from teddy.training import MovingAverage, Training, make_stepper, of_each

CLASSES, IPC, TEMPERATURE = 200, 10, 20.0


def main() -> None:
    """Measure and print."""
    given = arguments(
        __doc__,
        network="resnet18",
        size=64,
        batch=50,
        teachers=8,
        steps=200,
        slopes="2,4,8",
        at_once=1,
        optimizer="adamw",
    )
    device = pick_device("auto")
    task = Task(CLASSES, 3, given.size)
    ceiling = matrix_rate(device)
    print(f"matrix product: {ceiling / 1e12:.0f} TFLOP/s", flush=True)
    macs, _ = count_cost(build_network(given.network, task), task)
    work = 2 * macs * given.batch * (3 + given.teachers)
    engine = choose_engine(EngineSettings(), device)
    rows = []

    def add(name: str, step, calls: int, students: int = 1) -> None:
        seconds = seconds_of(step, calls=calls) / students
        line = {"": name, "ms a step": 1000 * seconds, "TFLOP/s": work / seconds / 1e12}
        line |= {"of matrix": work / seconds / ceiling, "ratio": rows[0]["ms a step"] / 1000 / seconds if rows else 1.0}
        rows.append(line | {"GiB": peak_gib()})
        print(rows[-1], flush=True)

    add("eager bf16, one teacher after the other", stepper(given, task, Engine(device, half=engine.half)), given.steps)
    ours = stepper(given, task, engine)
    add("ours", ours, given.steps)
    for times in map(int, filter(None, given.slopes.split(","))):
        add(f"ours, {times} × the steps", ours, times * given.steps)
    if given.at_once > 1:
        several = stepper(given, task, engine, given.at_once)
        add(f"ours, {given.at_once} students at once", several, given.steps, given.at_once)
    report(rows, given.json)


def loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """KL divergence from the ensemble."""
    assert batch.teacher_logits is not None
    return divergence(logits, batch.teacher_logits, TEMPERATURE)


def stepper(given, task: Task, engine: Engine, students: int = 1):
    """A function that takes the next batch, labels it and makes a step, after everything is prepared."""
    count = CLASSES * IPC
    pixels = torch.randint(0, 256, (count, 3, given.size, given.size), dtype=torch.uint8)
    images = Images(pixels, torch.arange(count) % CLASSES).to(engine.device)
    teachers = some_pool(given.network, task, given.teachers, engine).teachers
    ensemble = make_ensemble([teacher.network for teacher in teachers], "logits", TEMPERATURE, engine)
    loaders = [
        Loader(
            images, Preprocessing((0.48, 0.45, 0.4), (0.23, 0.23, 0.23)), task, batch_size=given.batch, seed=number,
            change=partial(draw_change, crop=(0.08, 1.0), flip=0.5), cutmix_alpha=1.0,
            label=lambda images, _: ensemble(images),
        )
        for number in range(students)
    ]  # fmt: skip
    torch.manual_seed(0)
    network = engine.place(as_one([build_network(given.network, task) for _ in range(students)])).train()
    optimizer = make_optimizer(given.optimizer, network, learning_rate=1e-3, weight_decay=0.01, momentum=0.9)
    own = of_each(loss, students) if students > 1 else loss
    step = make_stepper(Training(network, optimizer, MovingAverage(network, 0.99)), own, engine)
    return prepared(step, together(loaders, label_at_once=engine.captures), engine)


if __name__ == "__main__":
    main()
