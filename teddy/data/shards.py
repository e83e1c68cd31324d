"""Data sets in a few large files, each of which says in its name which part it belongs to: `train-00000-of-00004`."""

import re
from pathlib import Path

from teddy.errors import TeddyError

TEST_PARTS = ("val", "validation", "test")  # the first that is there; ImageNet's `test` has no labels
PART = re.compile(rf"(train|{'|'.join(TEST_PARTS)})(?=[-_.])")
COUNTED = re.compile(r"(.*)\d{5}-of-(\d{5})(.*)")


def has_shards(path: Path, suffix: str) -> bool:
    """Whether a path is such a file, or a folder of them and not one of class folders that has others beside."""
    if not path.is_dir():
        return path.suffix == suffix and path.is_file()
    shards = find_shards(path, suffix)
    if not shards or (path / "train").is_dir():
        return False
    return any(PART.match(shard.name) for shard in shards) or not any(
        entry.is_dir() and entry.name != "data" and not entry.name.startswith(".") for entry in path.iterdir()
    )


def find_shards(path: Path, suffix: str) -> list[Path]:
    """The files, sorted: the one given, or those in a folder, or those in its `data/`."""
    if not path.is_dir():
        return [path]
    for folder in (path, path / "data"):
        if folder.is_dir():
            shards = [file for file in folder.glob(f"*{suffix}") if not file.name.startswith(".") and file.is_file()]
            if shards:
                return sorted(shards)
    return []


def divide(shards: list[Path]) -> tuple[list[Path], list[Path]]:
    """Files of the training part and of the test part; all are for training where no name says a part."""
    parts: dict[str, list[Path]] = {}
    for shard in shards:
        found = PART.match(shard.name)
        parts.setdefault(found[1] if found else "", []).append(shard)
    if set(parts) == {""} or len(shards) == 1:
        _require_all(shards)
        return shards, []
    if "train" not in parts:
        folder = shards[0].parent
        raise TeddyError(f"source {folder}: no file of a training part, such as train-0{shards[0].suffix}; add it")
    test = next((parts[name] for name in TEST_PARTS if name in parts), [])
    _require_all(parts["train"])
    _require_all(test)
    return parts["train"], test


def _require_all(shards: list[Path]) -> None:
    there = {shard.name for shard in shards}
    series = {(found[1], found[2], found[3]) for name in there if (found := COUNTED.fullmatch(name))}
    for before, total, after in sorted(series):
        for number in range(int(total)):
            name = f"{before}{number:05d}-of-{total}{after}"
            if name not in there:
                raise TeddyError(f"source {shards[0].parent}: '{name}' is missing; fetch it as well")
