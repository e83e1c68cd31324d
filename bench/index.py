"""How long a folder of a million images takes to open a second time: `python bench/index.py`.

The thousand folders are real, and so are their modification times; the million files are in the index only.
"""

import os
import tempfile
import time
from pathlib import Path

import numpy as np

from teddy.data.index import Index, remember
from teddy.data.kinds import open_catalogue
from teddy.data.listing import Names

CLASSES = 1000
TRAIN_PER_CLASS = 1000
TEST_PER_CLASS = 50


def pretend(root: Path, per_class: int) -> None:
    """An index of files that are not there, in folders that are."""
    groups = [f"n{label:08d}" for label in range(CLASSES)]
    for group in groups:
        (root / group).mkdir(parents=True)
    count = CLASSES * per_class
    remember(
        Index(
            str(root),
            ("", *groups),
            np.array([0] + [per_class] * CLASSES),
            Names.pack(
                f"{group}/{group}_{number:08d}.JPEG".encode() for group in groups for number in range(per_class)
            ),
            np.full(count, 110_000),
            np.full(count, time.time_ns()),
            Names.pack(group.encode() for group in ("", *groups)),
            np.array([(root / group).stat().st_mtime_ns for group in ("", *groups)]),
        )
    )


def measure(title: str, source: Path) -> None:
    """Open a source and take its fingerprint."""
    start = time.perf_counter()
    catalogue = open_catalogue(str(source))
    opened = time.perf_counter()
    catalogue.train.fingerprint()
    done = time.perf_counter()
    assert catalogue.test is not None
    images = f"{len(catalogue.train):,} + {len(catalogue.test):,} images"
    print(f"{title}: {images} opened in {opened - start:.2f} s, fingerprint in {done - opened:.2f} s")


def main() -> None:
    """With train/ and val/, and as one folder that has to be split."""
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = f"{scratch}/cache"
        parts, whole = Path(scratch, "parts"), Path(scratch, "whole")
        pretend(parts / "train", TRAIN_PER_CLASS)
        pretend(parts / "val", TEST_PER_CLASS)
        pretend(whole, TRAIN_PER_CLASS)
        measure("train/ and val/", parts)
        measure("one folder, split", whole)


if __name__ == "__main__":
    main()
