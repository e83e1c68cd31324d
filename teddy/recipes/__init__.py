"""The recipes that ship with the package, and how one is chosen.

They are called `<data set>/<method>_ipc<N>.yaml`, variants `<method>_<variant>_ipc<N>`; `best_ipc<N>` is the best that
we know for a data set.
"""

import re
from pathlib import Path

from teddy.errors import TeddyError, unknown

FOLDER = Path(__file__).parent
DEFAULT_METHOD = "teddy"


def shipped_recipes() -> dict[str, Path]:
    """Name → file."""
    return {path.relative_to(FOLDER).with_suffix("").as_posix(): path for path in sorted(FOLDER.glob("*/*.yaml"))}


def find_recipe(name: str) -> Path:
    """A shipped recipe by name, or a file by path."""
    shipped = shipped_recipes()
    if name in shipped:
        return shipped[name]
    if Path(name).suffix in {".yaml", ".yml"}:
        if not Path(name).is_file():
            raise TeddyError(f"recipe {name}: no such file")
        return Path(name)
    raise unknown("recipe", name, shipped)


def fitting_recipe(source: str, method: str, ipc: int) -> str | None:
    """The shipped recipe for this source and method whose IPC is nearest, the best one first; None where there is none
    for the source."""
    names = ["best", method] if method == DEFAULT_METHOD else [method]
    distance = {}
    for name in shipped_recipes():
        match = re.fullmatch(rf"{re.escape(source)}/({'|'.join(names)})_ipc(\d+)", name)
        if match:
            distance[name] = (abs(int(match[2]) - ipc), names.index(match[1]))
    return min(distance, key=lambda name: distance[name]) if distance else None


def headline(path: Path) -> str:
    """The first line of a recipe's header."""
    return path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
