"""What docs/RESULTS.md says of finished runs: a table of everything that a figure needs beside it, and pictures.

    python bench/cells.py RUN [RUN …] [--pictures FOLDER]

The pictures are accuracy against steps for each run and network, and of all runs together the same with the control of
the first, and the images side by side: a row for each run, the first image of as many classes as there is room for.
"""

import argparse
import json
from pathlib import Path

import torch

import teddy
from teddy.config import Config
from teddy.distilled import encode_png
from teddy.evaluation import RESULTS, Results
from teddy.files import read_checked
from teddy.parsing import parse_config, read_recipe
from teddy.pool.store import read_index
from teddy.report.gallery import side_by_side
from teddy.report.plots import COLOURS, compared_curves, student_curves
from teddy.report.table import result_lines, time_saved
from teddy.run import CONFIG, STAGES
from teddy.stored_labels import FILE as STORED

CLASSES = 16


def main() -> None:
    """Every run, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--pictures", type=Path)
    given = parser.parse_args()
    for folder in given.runs:
        config = parse_config(read_recipe(folder / CONFIG))
        for line in described(folder, config):
            print(line)
        print()
        if given.pictures:
            draw_curves(folder, given.pictures)
    if given.pictures:
        every = {folder.name: _json(folder, RESULTS) for folder in given.runs}
        (given.pictures / "together.svg").write_text(together(every), encoding="utf-8")
        sheet = torch.cat([first_images(folder) for folder in given.runs], dim=1)
        (given.pictures / "side_by_side.png").write_bytes(encode_png(sheet))


def draw_curves(folder: Path, pictures: Path) -> None:
    """Accuracy against steps, distilled and control in one plot."""
    pictures.mkdir(parents=True, exist_ok=True)
    results: Results = _json(folder, RESULTS)
    for network in results:
        name = f"{folder.name}-{network.replace('/', '-')}.svg"
        (pictures / name).write_text(student_curves(results, network), encoding="utf-8")


def together(runs: dict[str, Results]) -> str:
    """The distilled images of each run and the first one's control, by the first network; with hard labels where a run
    has no others."""
    network = next(iter(next(iter(runs.values()))))
    labels = "" if all(results[network]["distilled"] for results in runs.values()) else ", hard labels"
    rows = [
        (name, f"C{number}", results[network][f"distilled{labels}"])
        for number, (name, results) in enumerate(runs.items())
    ]
    control = next(iter(runs.values()))[network][f"random control{labels}"]
    lines = [*rows, ("random photographs", COLOURS["random control"], control)]
    return compared_curves([(name, colour, list(students.values())) for name, colour, students in lines])


def first_images(folder: Path) -> torch.Tensor:
    """The first image of each of the first classes in a row, uint8 [C, H, W]."""
    images = teddy.load(folder).images
    rows = [int((images.labels == label).nonzero()[0]) for label in images.labels.unique()[:CLASSES]]
    return side_by_side(images.pixels[rows])


def described(folder: Path, config: Config) -> list[str]:
    """A run in Markdown."""
    results: Results = _json(folder, RESULTS)
    lines = [f"### {Path(config.data.source).name}, IPC {config.ipc}, {config.method.name}, seed {config.seed}", ""]
    for network in results:
        lines += [f"{network}:", "", "| trained on | accuracy, % | n | IOR |", "|---|---|---|---|"]
        lines += [f"| {row.row} | {row.accuracy} | {row.n} | {row.ior} |" for row in result_lines(results, network)]
        lines += ["", *(f"- {told}" for told in time_saved(results, network))]
    return [*lines, *(f"- {told}" for told in costs(folder, config))]


def costs(folder: Path, config: Config) -> list[str]:
    """What it was made of and what it took."""
    accuracies = [member["accuracy"] for member in read_index(folder)["members"]]
    stages = _json(folder, STAGES)
    seconds: dict[str, float] = {}
    for name, cost in stages.items():
        stage = name.split("/")[0]
        seconds[stage] = seconds.get(stage, 0) + cost["seconds"]
    memory = max((cost["gpu_bytes"] or 0 for cost in stages.values()), default=0)
    training = config.evaluation.training
    images = sum(path.stat().st_size for path in (folder / "distilled" / "images").rglob("*") if path.is_file())
    stored = folder / "distilled" / STORED
    labels = f"{stored.stat().st_size:,} bytes" if stored.exists() else "online"
    return [
        f"teachers {', '.join(f'{value:.1f}' for value in accuracies)} %; students of {training.epochs} epochs, batch "
        f"{training.batch_size}",
        "; ".join(f"{stage} {value:.0f} s" for stage, value in seconds.items())
        + f"; {memory / 1e9:.1f} GB of GPU memory",
        f"images {images:,} bytes, labels {labels}",
    ]


def _json(folder: Path, name: str):
    return json.loads(read_checked(folder, name))


if __name__ == "__main__":
    main()
