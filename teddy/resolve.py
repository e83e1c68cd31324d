"""From what a user asks for to a configuration that is checked, against the data too, before anything is written."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from teddy.config import Config, parse_assignment, parse_config, put, read_recipe
from teddy.data.kinds import BY_NAME
from teddy.data.source import Source
from teddy.errors import TeddyError, unknown
from teddy.methods import METHODS
from teddy.models.zoo import check_network
from teddy.pool.build import new_teacher
from teddy.recipes import find_recipe, fitting_recipe

DEFAULT_METHOD = "teddy"


def default_recipe(source: str | Path | None, *, ipc: int | None, method: str | None) -> str | None:
    """The shipped recipe for the source, with the nearest IPC, where there is one."""
    return (
        fitting_recipe(str(source), method or DEFAULT_METHOD, ipc) if source is not None and ipc is not None else None
    )


def resolve(
    source: str | Path | None,
    *,
    ipc: int | None,
    method: str | None,
    recipe: str | Path | None,
    settings: Mapping[str, Any] | Iterable[str],
) -> Config:
    """Defaults, then the recipe, then the arguments, then `settings`."""
    if method is not None and method not in METHODS:
        raise unknown("method", method, METHODS)
    tree = read_recipe(find_recipe(str(recipe))) if recipe else {}
    for path, value in {"data.source": source and str(source), "ipc": ipc, "method.name": method}.items():
        if value is not None:
            put(tree, path, value)
    assignments = settings.items() if isinstance(settings, Mapping) else map(parse_assignment, settings)
    for path, value in assignments:
        put(tree, path, value)
    if "data" not in tree or "ipc" not in tree:
        raise TeddyError("a source and --ipc are needed, as arguments or in the recipe")
    data = parse_config(tree).data
    for key, given in (("source", data.source), ("class_order", data.class_order)):
        place = Path(given or "").expanduser()
        if given and given not in BY_NAME and place.exists():
            put(tree, f"data.{key}", str(place.absolute()))  # so that the run folder can be used from anywhere
    return parse_config(tree)


def check(config: Config, source: Source) -> None:
    """Raise on what only the data or the tables can tell."""
    if config.method.name not in METHODS:
        raise unknown("method", config.method.name, METHODS)
    source.require(config.ipc)
    new_teacher(config.pool.network, source.task)
    for network in (config.pool.network, *config.evaluation.networks):
        check_network(network, source.task)


def bytes_needed(config: Config, source: Source) -> int:
    """What the run will write, roughly: the pool's weights, the images, their labels, a page and logs."""
    teacher = new_teacher(config.pool.network, source.task)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in teacher.state_dict().values())
    images = len(source.classes) * config.ipc
    per_image = 3 * source.channels * source.image_size**2 + 8 * len(source.classes)
    return len(config.pool.epochs) * weights + images * per_image + 8 * 2**20
