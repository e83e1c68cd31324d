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
from teddy.methods import METHODS
from teddy.pieces import Pieces
from teddy.pool.pool import Pool
from teddy.run import Run
from teddy.synthesis.groups import Group, make_groups
from teddy.synthesis.passes import Objective, Passes
from teddy.synthesis.real import real_images
from teddy.synthesis.size import groups_at_once, groups_side_by_side, usual_passes
from teddy.synthesis.steps import synthesize_images

IMAGES = "synthesis/images.safetensors"
BLOCKS = "synthesis/blocks"  # groups that are finished while others are not
WAVES = "synthesis/waves"  # those that are under way


def synthesize(settings: MethodSettings, source: Source, pool: Pool, run: Run, *, ipc: int) -> Images:
    """The images of this run, in pixels, class after class: made and left in its folder, if not there yet, and read."""
    if not run.has(IMAGES):
        method = METHODS[settings.name]
        start = method.start(settings, source, pool, ipc, seeding.stream(run.seed, "synthesis", "start")).cpu()
        pieces = Pieces(run, BLOCKS)
        groups = make_groups(
            len(source.classes),
            ipc,
            classes_per_group=settings.classes_per_group,
            images_per_class=settings.images_per_class,
            made=settings.made(ipc),
        )
        if method.objective:
            left = [groups[number] for number in pieces.missing(group.number for group in groups)]
            _make(settings, method.objective(settings), start, run.world.share(left), source, pool, run, pieces)
        run.world.wait("blocks")
        run.once("images", partial(_join, start, groups if method.objective else [], pieces, source, run))
    run.sweep(BLOCKS, WAVES)
    pixels = run.read_tensors(IMAGES)["pixels"]
    return Images(pixels, torch.arange(len(source.classes)).repeat_interleave(ipc))


def _make(
    settings: MethodSettings,
    objective: Objective,
    start: Tensor,
    groups: Sequence[Group],
    source: Source,
    pool: Pool,
    run: Run,
    pieces: Pieces,
) -> None:
    """Step some groups and keep each as a piece when it is done."""
    steps = len(groups) * settings.iterations
    if not groups:
        return
    real = real_images(settings, source, run.device)
    side_by_side = groups_side_by_side(start, groups, pool, objective, run.engine, run.groups, real)
    with run.stage("synthesis", f"synthesis: {settings.name}", steps) as stage:
        synthesize_images(
            start,
            groups,
            pool,
            Passes(objective, run.engine.for_steps(usual_passes(start, groups, settings))),
            bounds=source.preprocessing.bounds(torch.empty(0, device=run.device)),
            change=partial(_draw, source.image_size, settings.augment.model_dump()),
            iterations=settings.iterations,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            teachers=settings.teachers,
            redraw=settings.redraw,
            in_turn=settings.turns == "one",
            residual=settings.residual,
            residual_times=settings.residual_times,
            real=real,
            seed=seeding.derive(run.seed, "synthesis"),
            stage=stage,
            device=run.device,
            at_once=groups_at_once(start[groups[0].rows], run.device),
            side_by_side=side_by_side,
            say=run.say,
            keeper=lambda wave: Checkpoint(run, f"{WAVES}/{wave[0].number:06d}.safetensors"),
            after_wave=partial(_keep, pieces),
        )


def _keep(pieces: Pieces, groups: Sequence[Group], images: Tensor) -> None:
    for group, made in zip(groups, images.unflatten(0, (len(groups), -1)), strict=True):
        pieces.keep(group.number, {"images": made})


def _join(start: Tensor, groups: Sequence[Group], pieces: Pieces, source: Source, run: Run) -> None:
    for group, piece in zip(groups, pieces.take(group.number for group in groups), strict=True):
        start[group.rows] = piece["images"]
    # Whole pixel values from here on: what is labelled and evaluated is what is saved.
    run.write_tensors(IMAGES, {"pixels": source.preprocessing.to_pixels(start)})


def _draw(image_size: int, settings: dict[str, Any], count: int, generator: torch.Generator) -> Change:
    return draw_change(count, image_size, image_size, generator, **settings)
