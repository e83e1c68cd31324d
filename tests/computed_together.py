"""What two processes compute together, for test_parallel.py, which compares it with what one does.

torchrun --nproc-per-node=2 tests/computed_together.py FOLDER
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from teddy.config import AugmentSettings, PoolSettings, TeacherTrainingSettings
from teddy.data.preprocessing import Preprocessing
from teddy.data.source import Images, Source
from teddy.distributed import world
from teddy.engine import Engine
from teddy.models.synchronised import with_synchronised_norms
from teddy.models.zoo import build_network
from teddy.parallel import ALONE, Processes, together
from teddy.pool.training import teacher_loader, teacher_loss
from teddy.progress import Unwatched
from teddy.training import start_training, train_as

CPU = torch.device("cpu")
PARTS = (5, 2)  # images of each process
NORMS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "2d": (nn.BatchNorm2d(3), (3, 4, 4)),
    "1d": (nn.BatchNorm1d(3), (3,)),
    "cumulative": (nn.BatchNorm2d(3, momentum=None), (3, 4, 4)),
    "plain": (nn.BatchNorm2d(3, affine=False, track_running_stats=False), (3, 4, 4)),
}
SETTINGS = PoolSettings(
    network="convnet-d2-w8-bn",
    first=1,
    last=3,
    training=TeacherTrainingSettings(
        epochs=3, batch_size=5, learning_rate=0.05, ema=0.9, augment=AugmentSettings(crop=(0.5, 1.0), roll=2)
    ),
)


def normalised(name: str, part: slice, synchronised: bool) -> dict[str, Tensor]:
    """Two batches through a norm: the second's result and gradients, and what the norm has kept."""
    norm, shape = NORMS[name]
    generator = torch.Generator().manual_seed(0)
    if norm.affine:
        nn.init.normal_(norm.weight, generator=generator)
    layer = nn.Sequential(norm).train()
    layer = with_synchronised_norms(layer) if synchronised else layer
    for _ in range(2):
        given, wanted = (torch.randn(sum(PARTS), *shape, generator=generator) * 3 + 1 for _ in range(2))
        own = given[part].requires_grad_()
        layer.zero_grad()
        result = layer(own)
        (result * wanted[part]).sum().backward()
    kept = {key: value for key, value in norm.state_dict().items() if value is not None}
    gradients = {f"gradient.{key}": value.grad for key, value in norm.named_parameters() if value.grad is not None}
    assert own.grad is not None
    return {"result": result.detach(), "gradient": own.grad, **kept, **gradients}


def trained(processes: Processes) -> dict[str, Tensor]:
    """A small teacher's training: batches of five images and of four, so that parts differ."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (23, 1, 8, 8), generator=generator, dtype=torch.uint8)
    images = Images(pixels, torch.arange(23) % 2)
    source = Source("two", ("left", "right"), images, images, 1, 8, Preprocessing((0.5,), (0.3,)), fingerprint="two")
    torch.manual_seed(0)
    training = start_training(SETTINGS.training, build_network(SETTINGS.network, source.task), processes)
    part = (processes.rank, processes.size)
    loader = teacher_loader(SETTINGS, source, Engine(CPU), seed=0, part=part)
    losses = []

    class Losses(Unwatched):
        def step(self, count: int = 1, /, **values: Tensor | float) -> None:
            losses.append(float(values["loss"]))
            super().step(count)

    train_as(SETTINGS.training, training, loader, teacher_loss, seed=0, stage=Losses(), engine=Engine(CPU))
    return training.state() | {"losses": torch.tensor(losses)}


def main() -> None:
    """Everything, in a file for each process."""
    found = {}
    rank = world().rank
    part = slice(0, PARTS[0]) if rank == 0 else slice(PARTS[0], None)
    with together(world(), CPU, synchronise_norms=True) as processes:
        for name in NORMS:
            found |= {f"{name}.{key}": value for key, value in normalised(name, part, True).items()}
        found |= {f"synchronised.{key}": value for key, value in trained(processes).items()}
    with together(world(), CPU, synchronise_norms=False) as processes:
        found |= {f"own.{key}": value for key, value in trained(processes).items()}
    assert trained(ALONE)  # nothing is left of the group
    save_file({key: value.contiguous() for key, value in found.items()}, Path(sys.argv[1]) / f"{rank}.safetensors")


if __name__ == "__main__":
    main()
