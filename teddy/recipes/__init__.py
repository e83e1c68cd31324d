"""The recipes that ship with the package, `<data set>/<method>_ipc<N>.yaml`, and how one is chosen."""

import re
from pathlib import Path

from teddy.errors import TeddyError, unknown

FOLDER = Path(__file__).parent


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
    """The shipped recipe for this source and method whose IPC is nearest; None where there is none for the source."""
    distance = {}
    for name in shipped_recipes():
        match = re.fullmatch(rf"{re.escape(source)}/{re.escape(method)}_ipc(\d+)", name)
        if match:
            distance[name] = abs(int(match[1]) - ipc)
    return min(distance, key=lambda name: distance[name]) if distance else None


def headline(path: Path) -> str:
    """The first line of a recipe's header."""
    return path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
