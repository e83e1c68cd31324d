"""The synthesis stage: real data and teachers in, images out."""

from functools import partial
from typing import Any

import torch

from teddy import seeding
from teddy.config import MethodSettings
from teddy.data.augment import Change, draw_change
from teddy.data.source import Images, Source
from teddy.methods import METHODS
from teddy.pool.pool import Pool
from teddy.run import Run
from teddy.synthesis.groups import make_groups
from teddy.synthesis.passes import Passes
from teddy.synthesis.size import groups_at_once, groups_side_by_side
from teddy.synthesis.steps import synthesize_images

IMAGES = "synthesis/images.safetensors"


def synthesize(settings: MethodSettings, source: Source, pool: Pool, run: Run, *, ipc: int) -> Images:
    """The images of this run, in pixels, class after class: made and left in its folder, if not there yet, and read."""
    if not run.has(IMAGES):
        method = METHODS[settings.name]
        start = method.start(settings, source, ipc, seeding.stream(run.seed, "synthesis", "start")).to(run.device)
        groups = make_groups(
            len(source.classes),
            ipc,
            classes_per_group=settings.classes_per_group,
            images_per_class=settings.images_per_class,
        )
        if method.objective:
            steps = len(groups) * settings.iterations
            side_by_side = groups_side_by_side(run.engine, run.groups, len(groups[0].rows))
            with run.stage("synthesis", f"synthesis: {settings.name}", steps) as stage:
                start = synthesize_images(
                    start,
                    groups,
                    pool,
                    Passes(method.objective(settings), run.engine.for_steps(steps)),
                    bounds=source.preprocessing.bounds(start),
                    change=partial(_draw, source.image_size, settings.augment.model_dump()),
                    iterations=settings.iterations,
                    learning_rate=settings.learning_rate,
                    weight_decay=settings.weight_decay,
                    teachers=settings.teachers,
                    redraw=settings.redraw,
                    in_turn=settings.turns == "one",
                    seed=seeding.derive(run.seed, "synthesis"),
                    stage=stage,
                    at_once=groups_at_once(start[groups[0].rows], run.device),
                    side_by_side=side_by_side,
                    say=run.say,
                )
        # Whole pixel values from here on: what is labelled and evaluated is what is saved.
        run.write_tensors(IMAGES, {"pixels": source.preprocessing.to_pixels(start)})
    pixels = run.read_tensors(IMAGES)["pixels"]
    return Images(pixels, torch.arange(len(source.classes)).repeat_interleave(ipc))


def _draw(image_size: int, settings: dict[str, Any], count: int, generator: torch.Generator) -> Change:
    return draw_change(count, image_size, image_size, generator, **settings)
