"""Teacher training: images a second from resident data with its augmentation, ours and the usual way's.

    python bench/training.py [--network resnet18] [--size 64] [--batch 256] [--steps 100] [--json FILE]

The usual way: eager bf16, everything else the same. Then ours with 2, 4 and 8 times as many steps.
"""

from functools import partial

import torch
from gpu import arguments, matrix_rate, peak_gib, prepared, report, seconds_of

from teddy.config import EngineSettings
from teddy.data.augment import draw_change
from teddy.data.loaders import Loader
from teddy.data.preprocessing import Preprocessing
from teddy.data.source import Images, Task
from teddy.engine import Engine, choose_engine
from teddy.models.zoo import build_network
from teddy.optimizers import make_optimizer
from teddy.pool.store import count_cost
from teddy.pool.training import teacher_loss
from teddy.run import pick_device
from teddy.training import Training, make_stepper

CLASSES = 200


def main() -> None:
    """Measure and print."""
    given = arguments(__doc__, network="resnet18", size=64, batch=256, steps=100, slopes="2,4,8")
    device = pick_device("auto")
    task = Task(CLASSES, 3, given.size)
    ceiling = matrix_rate(device)
    print(f"matrix product: {ceiling / 1e12:.0f} TFLOP/s", flush=True)
    macs, _ = count_cost(build_network(given.network, task), task)
    work = 2 * 3 * macs  # forward, backward to the activations and to the weights
    engine = choose_engine(EngineSettings(), device)
    rows = []

    def add(name: str, step, calls: int) -> None:
        rate = given.batch / seconds_of(step, calls=calls)
        line = {"": name, "images/s": rate, "TFLOP/s": rate * work / 1e12, "of matrix": rate * work / ceiling}
        rows.append(line | {"ratio": rate / rows[0]["images/s"] if rows else 1.0, "GiB": peak_gib()})
        print(rows[-1], flush=True)

    add("eager bf16", stepper(given, task, Engine(device, half=engine.half)), given.steps)
    ours = stepper(given, task, engine)
    add("ours", ours, given.steps)
    for times in map(int, filter(None, given.slopes.split(","))):
        add(f"ours, {times} × the steps", ours, times * given.steps)
    report(rows, given.json)


def stepper(given, task: Task, engine: Engine):
    """A function that takes the next batch and makes a step, after everything is prepared."""
    count = 40 * given.batch
    pixels = torch.randint(0, 256, (count, 3, given.size, given.size), dtype=torch.uint8)
    images = Images(pixels, torch.arange(count) % CLASSES).to(engine.device)
    preprocessing = Preprocessing((0.48, 0.45, 0.4), (0.23, 0.23, 0.23))
    change = partial(draw_change, crop=(0.08, 1.0), flip=0.5)
    loader = Loader(images, preprocessing, task, batch_size=given.batch, seed=0, change=change)
    torch.manual_seed(0)
    network = engine.place(build_network(given.network, task)).train()
    optimizer = make_optimizer("sgd", network, learning_rate=0.01, weight_decay=1e-4, momentum=0.9)
    step = make_stepper(Training(network, optimizer), teacher_loss, engine)
    return prepared(step, loader, engine)


if __name__ == "__main__":
    main()
