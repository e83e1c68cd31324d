"""The synthesis stage: real data and teachers in, images out."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from teddy import seeding
from teddy.checkpoint import Checkpoint
from teddy.config import MethodSettings
from teddy.data.augment import Change, draw_change
from teddy.data.source import Images, Source
from teddy.errors import TeddyError
from teddy.methods import METHODS
from teddy.pool.pool import Pool
from teddy.run import Run, read_tensors
from teddy.synthesis.groups import Group, make_groups
from teddy.synthesis.passes import Passes
from teddy.synthesis.size import groups_at_once, groups_side_by_side
from teddy.synthesis.steps import synthesize_images

IMAGES = "synthesis/images.safetensors"
BLOCKS = "synthesis/blocks"  # groups that are finished while others are not
WAVE = "synthesis/wave.safetensors"  # those that are under way


def synthesize(settings: MethodSettings, source: Source, pool: Pool, run: Run, *, ipc: int) -> Images:
    """The images of this run, in pixels, class after class: made and left in its folder, if not there yet, and read."""
    if not run.has(IMAGES):
        method = METHODS[settings.name]
        start = method.start(settings, source, ipc, seeding.stream(run.seed, "synthesis", "start")).cpu()
        groups = make_groups(
            len(source.classes),
            ipc,
            classes_per_group=settings.classes_per_group,
            images_per_class=settings.images_per_class,
        )
        if method.objective:
            left = _without_finished(groups, start, run)
            steps = len(left) * settings.iterations
            objective = method.objective(settings)
            side_by_side = groups_side_by_side(start, groups, pool, objective, run.engine, run.groups)
            with run.stage("synthesis", f"synthesis: {settings.name}", steps) as stage:
                start = synthesize_images(
                    start,
                    left,
                    pool,
                    Passes(objective, run.engine.for_steps(steps)),
                    bounds=source.preprocessing.bounds(torch.empty(0, device=run.device)),
                    change=partial(_draw, source.image_size, settings.augment.model_dump()),
                    iterations=settings.iterations,
                    learning_rate=settings.learning_rate,
                    weight_decay=settings.weight_decay,
                    teachers=settings.teachers,
                    redraw=settings.redraw,
                    in_turn=settings.turns == "one",
                    seed=seeding.derive(run.seed, "synthesis"),
                    stage=stage,
                    device=run.device,
                    at_once=groups_at_once(start[groups[0].rows], run.device),
                    side_by_side=side_by_side,
                    say=run.say,
                    keeper=Checkpoint(run, WAVE),
                    after_wave=partial(_keep, run),
                )
        # Whole pixel values from here on: what is labelled and evaluated is what is saved.
        run.write_tensors(IMAGES, {"pixels": source.preprocessing.to_pixels(start)})
        run.remove(BLOCKS)
        run.remove(WAVE)
    pixels = run.read_tensors(IMAGES)["pixels"]
    return Images(pixels, torch.arange(len(source.classes)).repeat_interleave(ipc))


def _draw(image_size: int, settings: dict[str, Any], count: int, generator: torch.Generator) -> Change:
    return draw_change(count, image_size, image_size, generator, **settings)


def _keep(run: Run, groups: Sequence[Group], images: Tensor) -> None:
    """A block of finished groups, should the others be interrupted."""
    numbers = torch.tensor([group.number for group in groups])
    run.write_tensors(f"{BLOCKS}/{numbers[0]:06d}.safetensors", {"groups": numbers, "images": images})


def _without_finished(groups: Sequence[Group], images: Tensor, run: Run) -> list[Group]:
    """The groups that are still to be made; `images` get what is there of the others."""
    done: set[int] = set()
    for file in sorted((run.folder / BLOCKS).glob("*.safetensors")):
        try:
            block = read_tensors(file)
        except TeddyError:
            file.unlink()  # damaged: made again
            continue
        numbers = block["groups"].tolist()
        images[torch.cat([groups[number].rows for number in numbers])] = block["images"]
        done.update(numbers)
    return [group for group in groups if group.number not in done]
