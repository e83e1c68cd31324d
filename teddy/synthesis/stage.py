"""The synthesis stage: real data and teachers in, images out."""

from functools import partial

import torch

from teddy import seeding
from teddy.config import MethodSettings
from teddy.data.augment import augment
from teddy.data.source import Images, Source
from teddy.methods import METHODS
from teddy.pool.pool import Pool
from teddy.run import Run
from teddy.synthesis.engine import synthesize_images
from teddy.synthesis.groups import make_groups

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
            with run.stage("synthesis", f"synthesis: {settings.name}", len(groups) * settings.iterations) as stage:
                start = synthesize_images(
                    start,
                    groups,
                    pool,
                    method.objective(settings),
                    bounds=source.preprocessing.bounds(start),
                    change=partial(augment, **settings.augment.model_dump()),
                    iterations=settings.iterations,
                    learning_rate=settings.learning_rate,
                    weight_decay=settings.weight_decay,
                    teachers=settings.teachers,
                    redraw=settings.redraw,
                    in_turn=settings.turns == "one",
                    seed=seeding.derive(run.seed, "synthesis"),
                    stage=stage,
                )
        # Whole pixel values from here on: what is labelled and evaluated is what is saved.
        run.write_tensors(IMAGES, {"pixels": source.preprocessing.to_pixels(start)})
    pixels = run.read_tensors(IMAGES)["pixels"]
    return Images(pixels, torch.arange(len(source.classes)).repeat_interleave(ipc))
