"""What stored soft labels take on disk and cost in accuracy, form by form, beside labels online from the pool.

    python bench/labels.py SOURCE --recipe NAME --ipc N --out FOLDER [--seeds S] [--json FILE]

The pool is trained and the images are made once; then each form labels the same images, and students are trained on
them and on as many random images whose labels are stored in the same form.
"""

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import teddy
from teddy.config import Config
from teddy.evaluation import Score
from teddy.resolve import resolve
from teddy.stored_labels import FILE as STORED
from teddy.students import ROWS

FORMS: dict[str, dict[str, Any]] = {
    "online from the pool": {},
    "stored, all classes, fp16": {"relabel.labels": "stored"},
    "stored, 5 largest classes": {"relabel.labels": "stored", "relabel.top_k": 5},
    "stored, 3 largest classes": {"relabel.labels": "stored", "relabel.top_k": 3},
    "stored, a tenth of the epochs": {"relabel.labels": "stored", "relabel.stored_epochs": "E/10"},
    "stored, 3 classes, a tenth": {"relabel.labels": "stored", "relabel.top_k": 3, "relabel.stored_epochs": "E/10"},
    "stored, one epoch": {"relabel.labels": "stored", "relabel.stored_epochs": 1},
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--ipc", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for number, (form, settings) in enumerate(FORMS.items()):
        out = given.out / f"form-{number}"
        begin = time.perf_counter()
        config = resolve(given.source, ipc=given.ipc, method=None, recipe=given.recipe, settings=fixed(given, settings))
        if number:
            reuse(given.out / "form-0", out, config)
        outcome = teddy.distill(recipe=write(config, given.out), out=out, console=Console(quiet=True))
        ((network, students),) = outcome.results.items()
        distilled, control = Score.final(students["distilled"]), Score.final(students["random control"])
        stored = out / "distilled" / STORED
        size = stored.stat().st_size if stored.exists() else 0
        seconds = time.perf_counter() - begin
        rows.append({"form": form, "bytes": size, "distilled": distilled.mean, "deviation": distilled.deviation,
                     "random": control.mean, "random_deviation": control.deviation, "n": distilled.n,
                     "network": network, "seconds": round(seconds, 1)})  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    epochs = config.evaluation.training.epochs
    images = sum(path.stat().st_size for path in (given.out / "form-0" / "distilled" / "images").rglob("*.png"))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(
        f"\n{given.source}, IPC {given.ipc}, {rows[0]['network']}, {epochs} epochs, {device}, torch {torch.__version__}"
    )
    print(f"images: {images:,} bytes")
    print(f"{'labels':34}{'bytes':>12}  {'distilled':>12}  {'random':>12}  {'IOR':>6}")
    for row in rows:
        print(
            f"{row['form']:34}{row['bytes']:12,}  {row['distilled']:5.1f} ± {row['deviation']:4.1f}  "
            f"{row['random']:5.1f} ± {row['random_deviation']:4.1f}  {row['distilled'] - row['random']:+6.1f}"
        )
    if given.json:
        given.json.write_text(json.dumps({"images_bytes": images, "rows": rows}, indent=1))


def fixed(given: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a form, with shares of the epochs as numbers."""
    base = {"evaluation.seeds": given.seeds, "evaluation.full_data_seeds": 1}
    config = resolve(given.source, ipc=given.ipc, method=None, recipe=given.recipe, settings=base)
    epochs = config.evaluation.training.epochs
    shares = {"E/10": epochs // 10}
    return base | {key: shares.get(value, value) for key, value in settings.items()}


def write(config: Config, folder: Path) -> Path:
    """The configuration as a recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "recipe.yaml"
    path.write_text(config.to_yaml())
    return path


def reuse(first: Path, out: Path, config: Config) -> None:
    """Begin a run with the teachers and images of another, and its students that had no soft labels."""
    out.mkdir(parents=True)
    (out / "config.yaml").write_text(config.to_yaml())
    shutil.copy(first / "source.json", out)
    for stage in ("pool", "synthesis"):
        shutil.copytree(first / stage, out / stage)
    results = json.loads((first / "evaluation" / "results.json").read_text())
    kept = {
        network: {row: students for row, students in rows.items() if ROWS[row].labels == "hard"}
        for network, rows in results.items()
    }
    (out / "evaluation").mkdir()
    (out / "evaluation" / "results.json").write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
