"""From what a user asks for to a configuration that is checked, against the data too, before anything is written."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from teddy.config import Config, MethodSettings, PoolConfig, PoolSettings
from teddy.data.kinds import BY_NAME
from teddy.data.source import Source, open_source
from teddy.errors import TeddyError, unknown
from teddy.methods import METHODS
from teddy.models.layers import inner_convolutions, normalisation_layers
from teddy.models.zoo import build_network, check_network
from teddy.parsing import parse_assignment, parse_config, parse_pool_config, put, read_recipe
from teddy.pool.existing import CHOOSING, how_made
from teddy.pool.store import read_index
from teddy.recipes import DEFAULT_METHOD, find_recipe, fitting_recipe
from teddy.run import pick_device


def default_recipe(source: str | Path | None, *, ipc: int | None, method: str | None) -> str | None:
    """The shipped recipe for the source, with the nearest IPC, where there is one."""
    return (
        fitting_recipe(str(source), method or DEFAULT_METHOD, ipc) if source is not None and ipc is not None else None
    )


def pool_recipe(source: str | Path | None) -> str | None:
    """A shipped recipe for the source, whose pool is the same for any IPC that has none of its own."""
    return fitting_recipe(str(source), DEFAULT_METHOD, 10) if source is not None else None


def resolve(
    source: str | Path | None,
    *,
    ipc: int | None,
    method: str | None,
    recipe: str | Path | None,
    settings: Mapping[str, Any] | Iterable[str],
    pool: str | Path | None = None,
) -> Config:
    """Defaults, then the recipe, then the arguments, then `settings`."""
    if method is not None and method not in METHODS:
        raise unknown("method", method, METHODS)
    tree = read_recipe(find_recipe(str(recipe))) if recipe else {}
    if pool is not None:
        _put_pool(tree, Path(pool), source)
    changed = _change(tree, {"data.source": source, "ipc": ipc, "method.name": method}, settings)
    if pool is not None:
        _check_pool_is_left_as_it_is(Path(pool), changed)
    if "data" not in tree or "ipc" not in tree:
        raise TeddyError("a source and --ipc are needed, as arguments or in the recipe")
    return parse_config(_with_whole_paths(tree, parse_config(tree)))


def resolve_pool(
    source: str | Path | None,
    *,
    recipe: str | Path | None,
    arguments: Mapping[str, Any],
    settings: Mapping[str, Any] | Iterable[str],
) -> PoolConfig:
    """The same for a pool on its own; what a recipe says of the rest is passed over."""
    tree = read_recipe(find_recipe(str(recipe))) if recipe else {}
    tree = {key: value for key, value in tree.items() if key in PoolConfig.model_fields}
    _change(tree, {"data.source": source, **arguments}, settings)
    if "data" not in tree:
        raise TeddyError("a source is needed, as an argument or in the recipe")
    return parse_pool_config(_with_whole_paths(tree, parse_pool_config(tree)))


def _change(
    tree: dict[str, Any], arguments: Mapping[str, Any], settings: Mapping[str, Any] | Iterable[str]
) -> list[str]:
    """Put arguments, then settings; gives the paths of the settings."""
    for path, value in arguments.items():
        if value is not None:
            put(tree, path, str(value) if isinstance(value, Path) else value)
    assignments = list(settings.items() if isinstance(settings, Mapping) else map(parse_assignment, settings))
    for path, value in assignments:
        put(tree, path, value)
    return [path for path, _ in assignments]


def _put_pool(tree: dict[str, Any], folder: Path, source: str | Path | None) -> None:
    """How the pool in `folder` was made takes the place of what a recipe says; its images are the default source."""
    made = how_made(folder)
    tree["pool"] = {**made["pool"], "folder": str(folder.absolute())}
    index = read_index(folder)
    if source is None and "source" not in tree.get("data", {}):
        tree["data"] = {**made["data"], **tree.get("data", {})}
    for key in ("mean", "std"):  # the teachers' own, whatever this data's would be
        put(tree, f"data.{key}", index[key])


def _check_pool_is_left_as_it_is(folder: Path, changed: Iterable[str]) -> None:
    """Raise on settings of a pool that is made already; which of its snapshots are used may be said."""
    free = CHOOSING if read_index(folder)["generation"] == "prior" else ()
    for path in changed:
        if path.startswith("pool.") and path not in free:
            raise TeddyError(
                f"{path}: decides how a pool is made, and --pool {folder} is made already; leave one of them out"
            )


def _with_whole_paths(tree: dict[str, Any], config: PoolConfig) -> dict[str, Any]:
    """Paths that can be used from anywhere, as the run folder can."""
    given = {
        "data.source": config.data.source,
        "data.class_order": config.data.class_order,
        "pool.weights": config.pool.weights,
        "pool.pruning.finetuning.follow": config.pool.pruning.finetuning.follow,
    }
    for path, text in given.items():
        place = Path(text or "").expanduser()
        if text and text not in BY_NAME and place.exists():
            put(tree, path, str(place.absolute()))
    return tree


def open_data(config: PoolConfig, console: Console | None) -> Source:
    """The real images, as configured."""
    data = config.data
    source = open_source(
        data.source,
        image_size=data.image_size,
        test_share=data.test_share,
        class_order=Path(data.class_order) if data.class_order else None,
        loader=data.loader,
        workers=data.workers,
        skip_bad=data.skip_bad,
        device=pick_device(config.device),
        console=console or Console(stderr=True),
    )
    return source.normalised_by(data.mean, data.std) if data.mean and data.std else source


def opening_line(real: Source, recipe: str | Path | None) -> str:
    """What a run begins with, for its log."""
    return f"{real.summary()}; {f'recipe {recipe}' if recipe else 'no recipe, the default settings'}"


def check(config: Config, source: Source) -> None:
    """Raise on what only the data or the tables can tell."""
    if config.method.name not in METHODS:
        raise unknown("method", config.method.name, METHODS)
    source.require(config.ipc)
    _check_tiles(config.method, config.ipc, source)
    if config.method.map_weight and not inner_convolutions(build_network(config.pool.network, source.task)):
        raise TeddyError(
            f"method.map_weight: pool.network '{config.pool.network}' has no convolution but its first; set it to 0"
        )
    for network in config.evaluation.networks:
        check_network(network, source.task)


def _check_tiles(settings: MethodSettings, ipc: int, source: Source) -> None:
    needed, least = ipc * settings.tiles**2, min(source.class_counts())
    if source.image_size % settings.tiles:
        raise TeddyError(f"method.tiles: {settings.tiles} does not divide images of {source.image_size} pixels a side")
    if settings.tiles > 1 and needed > least:
        raise TeddyError(f"method.tiles: needs {needed} images of each class, and one has {least}; lower it or --ipc")


def bytes_needed(config: Config, source: Source) -> int:
    """What the run will write, roughly: the pool, the images, their labels, a page and logs."""
    return pool_bytes(config.pool, source) + image_bytes(config, source) + 8 * 2**20


def image_bytes(config: Config, source: Source) -> int:
    """What the images and their labels will take, roughly, as pixels, as PNG and on the page."""
    per_image = 3 * source.channels * source.image_size**2 + 8 * len(source.classes)
    return len(source.classes) * config.ipc * per_image


def pool_bytes(settings: PoolSettings, source: Source) -> int:
    """What a pool will write, roughly: weights and class means of every member, and what training needs to resume."""
    if settings.folder:
        return 0  # linked
    network = build_network(settings.network, source.task)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
    features = sum(tensor.shape[0] for layer in normalisation_layers(network) for tensor in layer.parameters()) // 2
    means = 4 * len(source.classes) * features if settings.class_means else 0
    return settings.size * (weights + means) + 3 * weights
