"""What the machine has to give."""

import os
from pathlib import Path

import torch
from torch import Tensor

MOST_WORKERS = 16
IMAGES_PER_WORKER = 2000  # fewer do not pay for starting a process


def free_memory(device: torch.device | None = None) -> int:
    """Bytes free on the machine, or on `device` where that is less; what PyTorch keeps in store there is free."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:  # what the cache holds can be had too
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass
    if device is not None and device.type == "cuda":
        in_store = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = min(free, torch.cuda.mem_get_info(device)[0] + in_store)
    return free


def brought(values: Tensor, device: torch.device) -> Tensor:
    """On `device`, without waiting for what that is doing: copies from ordinary memory wait."""
    if device.type != "cuda" or values.is_cuda:
        return values.to(device)
    return values.contiguous().pin_memory().to(device, non_blocking=True)


def worker_count(images: int) -> int:
    """Processes that decode so many images: none for a few, which are decoded on the spot."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_WORKERS, images // IMAGES_PER_WORKER)
