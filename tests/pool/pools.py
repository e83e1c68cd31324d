"""A small pool of the two-class source, and what a pool leaves."""

from teddy.config import PoolSettings, TeacherTrainingSettings
from teddy.run import Run

PRIOR = PoolSettings(
    network="convnet-d2-w8-bn",
    first=1,
    last=4,
    every=2,
    training=TeacherTrainingSettings(epochs=6, batch_size=8, learning_rate=0.01),
)


def pool_files(run: Run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run.folder / "pool").iterdir())}
