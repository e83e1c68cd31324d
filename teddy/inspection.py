"""What a source looks like before it is distilled."""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from teddy import seeding
from teddy.data.memory import free_memory
from teddy.data.source import Form, Source, choose_form, open_source
from teddy.distilled import encode_png
from teddy.files import write_whole
from teddy.report.gallery import contact_sheet
from teddy.run import pick_device

SHOWN_CLASSES = 20
SHOWN_IMAGES = 10


@dataclass(frozen=True)
class Inspection:
    """What was seen, and the loader it leads to."""

    source: Source
    memory: int
    free: int
    form: Form

    def lines(self) -> list[tuple[str, str]]:
        """Heading and text of each thing to know."""
        source, counts = self.source, self.source.class_counts()
        fewest, most = min(counts), max(counts)
        at = {count: source.classes[counts.index(count)] for count in (fewest, most)}
        sizes = ", ".join(f"{width} × {height} ({count})" for (width, height), count in source.sizes[:5])
        more = f" and {len(source.sizes) - 5} more sizes" if len(source.sizes) > 5 else ""
        return [
            ("source", f"{source.name}, read as {source.kind}"),
            ("classes", f"{len(counts)}: {', '.join(source.classes[:10])}{' …' if len(counts) > 10 else ''}"),
            ("images", f"{len(source.train):,} to train, {len(source.test):,} to test"),
            ("per class", f"{fewest} ('{at[fewest]}') to {most} ('{at[most]}'), imbalance {most / max(fewest, 1):.2f}"),
            ("sizes", f"{sizes}{more}; used at {source.image_size} × {source.image_size}"),
            ("channels", "1, grey" if source.channels == 1 else "3, colour"),
            ("mean, deviation", f"{_figures(source.preprocessing.mean)}; {_figures(source.preprocessing.std)}"),
            ("unreadable", f"{len(source.skipped)}" + "".join(f"\n  {place}" for place in sorted(source.skipped))),
            ("memory", f"{_bytes(self.memory)} of pixels, {_bytes(self.free)} free: {self.form} loader"),
        ]


def inspect(
    source: str | Path,
    *,
    image_size: int | None = None,
    class_order: str | Path | None = None,
    device: str = "auto",
    sheet: str | Path | None = None,
    console: Console | None = None,
) -> Inspection:
    """Look at every image of a source; unreadable ones are listed, not an error. `sheet` is a PNG for samples."""
    place = pick_device(device)
    opened = open_source(
        str(source),
        image_size=image_size,
        class_order=Path(class_order) if class_order else None,
        skip_bad=sys.maxsize,
        device=place,
        console=console,
    )
    count = len(opened.train) + len(opened.test)
    memory = count * opened.channels * opened.image_size**2
    form = choose_form(count, opened.channels, opened.image_size, place)
    if sheet:
        write_whole(Path(sheet), encode_png(_samples(opened)))
    return Inspection(opened, memory, free_memory(place), form)


def _samples(source: Source) -> torch.Tensor:
    images = source.draw(SHOWN_IMAGES, seeding.stream(0, "inspect"))
    shown = images.labels < SHOWN_CLASSES
    return contact_sheet(images.pixels[shown], images.labels[shown], min(len(source.classes), SHOWN_CLASSES))


def _figures(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4f}" for value in values)


def _bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
