"""Images per second from files to augmented batches on the device: our two loaders, and torchvision's usual way.

    python bench/loading.py SOURCE [--images N] [--batch B] [--workers W] [--json FILE]

SOURCE is whatever `teddy distill` takes. Its training images are first written out as the very same files in class
folders, which all three then read; each passes over them once to warm up and then `--repeats` times, in turns. All
shuffle, crop (RandomResizedCrop 0.08–1), flip and normalise, and end with float batches on the device.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from teddy.data.augment import draw_change
from teddy.data.kinds import open_catalogue
from teddy.data.loaders import Loader
from teddy.data.memory import worker_count
from teddy.data.source import Source, open_source


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--images", type=int, default=20000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        count = write_files(given.source, Path(folder), given.images)
        workers = worker_count(10**9) if given.workers is None else given.workers
        resident = open_source(folder, loader="resident", workers=workers, test_share=0.001)
        streamed = open_source(folder, loader="streamed", workers=workers, test_share=0.001)
        contenders = {
            "torchvision ImageFolder + DataLoader": usual_way(Path(folder), resident, given.batch, workers, device),
            "streamed": ours(streamed, given.batch, device),
            "resident": ours(resident, given.batch, device),
        }
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for repeat in range(given.repeats + 1):
            for name, epoch in contenders.items():
                begin = time.perf_counter()
                images = epoch(repeat)
                if device.type == "cuda":
                    torch.cuda.synchronize()
                if repeat:  # the first pass warms up
                    seconds[name].append((time.perf_counter() - begin) / images)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{os.cpu_count()} CPU cores"
    rates = {name: 1 / statistics.median(times) for name, times in seconds.items()}
    usual = rates["torchvision ImageFolder + DataLoader"]
    print(f"{count} files of {resident.image_size} pixels a side, batch {given.batch}, {workers} workers, {name}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}; median of {given.repeats} passes")
    print(f"{'':40}{'images/s':>12}{'ratio':>8}")
    for contender, rate in rates.items():
        print(f"{contender:40}{rate:12,.0f}{rate / usual:8.2f}")
    if given.json:
        given.json.write_text(json.dumps({"device": name, "files": count, "workers": workers, "images_per_s": rates}))


def write_files(source: str, folder: Path, most: int) -> int:
    """The first `most` training images, as they are stored, in class folders."""
    catalogue = open_catalogue(source)
    count = min(len(catalogue.train), most)
    step = max(len(catalogue.train) // count, 1)
    for number in range(count):
        row = number * step
        content = catalogue.train.read(row)
        if not isinstance(content, bytes):
            raise SystemExit(f"{source}: holds pixels, not files; take a source of encoded images")
        place = folder / catalogue.classes[int(catalogue.train.labels[row])]
        place.mkdir(exist_ok=True)
        suffix = "png" if content.startswith(b"\x89PNG") else "jpg"
        (place / f"{number:07d}.{suffix}").write_bytes(content)
    return count


def ours(source: Source, batch: int, device: torch.device) -> Callable[[int], int]:
    """A pass over our batches; gives the number of images."""
    loader = Loader(
        source.train.to(device),
        source.preprocessing,
        source.task,
        batch_size=batch,
        seed=0,
        change=partial(draw_change, crop=(0.08, 1.0), flip=0.5),
    )
    return lambda number: sum(len(part.images) for part in loader.epoch(number))


def usual_way(folder: Path, source: Source, batch: int, workers: int, device: torch.device) -> Callable[[int], int]:
    """The same with torchvision's data set and transforms."""
    change = transforms.Compose(
        [
            transforms.RandomResizedCrop(source.image_size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(source.preprocessing.mean, source.preprocessing.std),
        ]
    )
    loader = DataLoader(
        datasets.ImageFolder(str(folder), change),
        batch_size=batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
    )

    def epoch(_: int) -> int:
        seen = 0
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            seen += len(images)
        return seen

    return epoch


if __name__ == "__main__":
    main()
