"""Work in numbered pieces, each of which is kept in the run folder when it is done, whichever process does it."""

from collections.abc import Iterable

from torch import Tensor

from teddy.errors import TeddyError
from teddy.run import Run


class Pieces:
    """The pieces of one stage, in a folder that is there while the stage is under way."""

    def __init__(self, run: Run, folder: str) -> None:
        self._run, self._folder = run, folder

    def missing(self, numbers: Iterable[int]) -> list[int]:
        """Those that nobody has done yet; what is damaged is to be done again."""
        return [number for number in numbers if self.read(number) is None]

    def keep(self, number: int, tensors: dict[str, Tensor]) -> None:
        """A piece that is done."""
        self._run.write_tensors(self._file(number), tensors)

    def read(self, number: int) -> dict[str, Tensor] | None:
        """A piece, if it is there and whole."""
        if not self._run.has(self._file(number)):
            return None
        try:
            return self._run.read_tensors(self._file(number))
        except TeddyError:
            self._run.remove(self._file(number))
            return None

    def take(self, numbers: Iterable[int]) -> list[dict[str, Tensor]]:
        """Pieces that are all there."""
        return [self._run.read_tensors(self._file(number)) for number in numbers]

    def _file(self, number: int) -> str:
        return f"{self._folder}/{number:06d}.safetensors"
