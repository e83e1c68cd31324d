"""Synthesis: image · model · iterations a second, ours and the usual loop's, on the same work in the same run.

    python bench/synthesis.py [--network resnet18] [--size 64] [--classes 200] [--ipc 32] [--iterations 8] [--json FILE]

The usual loop: fp32 with TF32 convolutions, hooks on BatchNorm, one batch of 100 images, the loss read in every
iteration. Ours: the package's engine as it chooses itself. Then ours with three teachers an image, and with 2, 4 and 8
times as many images: time should grow as they do and memory not at all.
"""

import statistics
import time
from functools import partial

import torch
from gpu import arguments, matrix_rate, peak_gib, report, seconds_of, some_pool, wait
from torch import Tensor, nn
from torch.nn import functional as F

from teddy.config import EngineSettings
from teddy.data.augment import Change, apply_change, draw_change
from teddy.data.source import Task
from teddy.engine import Engine, choose_engine
from teddy.methods.teddy import weighted_objective
from teddy.pool.store import count_cost
from teddy.run import pick_device
from teddy.synthesis.groups import make_groups
from teddy.synthesis.passes import Passes
from teddy.synthesis.size import groups_at_once, groups_side_by_side
from teddy.synthesis.steps import synthesize_images

GROUP = 100
REPEATS = 3


def main() -> None:
    """Measure and print."""
    given = arguments(__doc__, network="resnet18", size=64, classes=200, ipc=32, iterations=8, slopes="2,4,8", groups=0)
    device = pick_device("auto")
    engine = choose_engine(EngineSettings(), device)
    task = Task(given.classes, 3, given.size)
    ceiling = matrix_rate(device)
    print(f"matrix product: {ceiling / 1e12:.0f} TFLOP/s", flush=True)
    macs, _ = count_cost(some_pool(given.network, task, 1, Engine(torch.device("cpu"))).teachers[0].network, task)
    work = 2 * 2 * macs  # forward, and backward to the images
    rows = []

    def add(name: str, rate: float, like: float | None = None) -> None:
        slope = like / rate if like else ""  # cost of an image, in those of the base
        line = {"": name, "img·model·it/s": rate, "TFLOP/s": rate * work / 1e12, "of matrix": rate * work / ceiling}
        rows.append(
            line | {"ratio": rate / rows[0]["img·model·it/s"] if rows else 1.0, "slope": slope, "GiB": peak_gib()}
        )
        print(rows[-1], flush=True)

    add("usual loop", usual_rate(given, task, device))
    passes = Passes(objective(), engine)
    ours = partial(our_rate, given, task, engine, passes)
    base = ours(given.ipc, 1)
    add(f"ours, {given.ipc * given.classes} images", base)
    add("ours, three teachers", ours(given.ipc, 3))
    for times in map(int, filter(None, given.slopes.split(","))):
        add(f"ours, {times} × the images", ours(times * given.ipc, 1), like=base)
    report(rows, given.json)


def objective():
    """Eq. 6 with the weights of Tiny-ImageNet."""
    return weighted_objective(global_weight=1.0, class_wise_weight=0.0, every_layer=False, classifier_weight=1.0)


def draw(size: int, count: int, generator: torch.Generator) -> Change:
    """The paper's augmentation."""
    return draw_change(count, size, size, generator, crop=(0.08, 1.0), flip=0.5, roll=4)


def our_rate(given, task: Task, engine: Engine, passes: Passes, ipc: int, teachers: int) -> float:
    """Everything that the stage does, from drawing augmentations to clamping pixels."""
    pool = some_pool(given.network, task, teachers, engine)
    groups = make_groups(given.classes, ipc, classes_per_group=GROUP, images_per_class=1)
    start = torch.randn(given.classes * ipc, 3, given.size, given.size)
    bounds = torch.tensor(-2.0, device=engine.device), torch.tensor(2.0, device=engine.device)

    side_by_side = groups_side_by_side(start, groups, pool, objective(), engine, given.groups or "auto")

    clock = Clock(given.iterations)

    def run() -> None:
        synthesize_images(
            start, groups, pool, passes, bounds=bounds, change=partial(draw, given.size),
            iterations=Clock.WARM_UP + given.iterations, learning_rate=0.1, weight_decay=1e-4, teachers=teachers,
            redraw=False, in_turn=False, seed=0, stage=clock, device=engine.device,
            at_once=groups_at_once(start[groups[0].rows], engine.device), side_by_side=side_by_side, say=print,
        )  # fmt: skip

    begin = time.perf_counter()
    run()
    print(f"  prepared in {time.perf_counter() - begin:.0f} s", flush=True)
    peak_gib()
    clock.rates.clear()
    while len(clock.rates) < REPEATS:
        run()
    return GROUP * teachers * statistics.median(clock.rates)


class Clock:
    """Iterations of groups a second in each wave, without its first iterations and without bringing its images over
    and back, which is done once in thousands of iterations."""

    WARM_UP = 2

    def __init__(self, iterations: int) -> None:
        self.rates: list[float] = []
        self._iterations, self._done, self._begun = iterations, 0, 0.0

    def step(self, count: int = 1, **_: Tensor) -> None:
        """An iteration of `count` groups."""
        self._done += 1
        if self._done == self.WARM_UP:
            wait()
            self._begun = time.perf_counter()
        if self._done == self.WARM_UP + self._iterations:
            wait()
            self.rates.append(count * self._iterations / (time.perf_counter() - self._begun))
            self._done = 0


def usual_rate(given, task: Task, device: torch.device) -> float:
    """The loop as published implementations write it."""
    (teacher,) = some_pool(given.network, task, 1, Engine(device)).teachers
    network, kept = teacher.network, {}
    layers = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        features = inputs[0]
        mean = features.mean([0, 2, 3])
        variance = features.permute(1, 0, 2, 3).contiguous().view(features.shape[1], -1).var(1, unbiased=False)
        kept[layer] = (layer.running_mean - mean).norm(2) + (layer.running_var - variance).norm(2)

    for layer in layers:
        layer.register_forward_hook(hook)
    images = torch.randn(GROUP, 3, given.size, given.size, device=device, requires_grad=True)
    labels = torch.arange(GROUP, device=device) % task.num_classes
    optimizer = torch.optim.Adam([images], lr=0.1, betas=(0.5, 0.9))
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        changed = apply_change(images, draw(given.size, GROUP, generator))
        optimizer.zero_grad()
        logits = network(changed)
        loss = F.cross_entropy(logits, labels) + sum(kept[layer] for layer in layers)
        loss.backward()
        optimizer.step()
        loss.item()
        with torch.no_grad():
            images.clamp_(-2, 2)

    step()
    step()
    peak_gib()
    return GROUP / seconds_of(step, calls=30)


if __name__ == "__main__":
    main()
