"""One stream of random numbers per (stage, index), so that no result depends on order, workers or neighbours.

A stream is named by a path such as ("student", "resnet18", 2). The same seed and path give the same numbers, whatever
else was drawn before. Streams are drawn on the CPU, so that they do not depend on the device either.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *path: str | int) -> int:
    """A 63-bit seed of its own for `path` under `seed`."""
    text = "/".join([str(seed), *(str(part) for part in path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def stream(seed: int, *path: str | int) -> torch.Generator:
    """A fresh generator for `path`."""
    return torch.Generator().manual_seed(derive(seed, *path))


@contextmanager
def seeded(seed: int, *path: str | int) -> Iterator[None]:
    """PyTorch's global generators seeded for `path` inside, and as they were outside: for initialisation and dropout,
    which take no generator."""
    with torch.random.fork_rng():
        torch.manual_seed(derive(seed, *path))
        yield
