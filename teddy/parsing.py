"""From YAML and `key.path=value` to a checked configuration; the first mistake is one line that names its path."""

import json
import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from teddy.config import Config, PoolConfig, Settings
from teddy.errors import TeddyError, unknown

Kind = TypeVar("Kind", bound=PoolConfig)


def parse_config(tree: dict[str, Any]) -> Config:
    """Check a nested dictionary; the first mistake is named with its path."""
    return _parse(Config, tree)


def parse_pool_config(tree: dict[str, Any]) -> PoolConfig:
    """The same for what a pool alone needs."""
    return _parse(PoolConfig, tree)


def _parse(kind: type[Kind], tree: dict[str, Any]) -> Kind:
    try:
        # The JSON form of strict checking takes lists for tuples, which is what YAML gives.
        return kind.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        raise _one_line(error, kind) from None
    except TypeError as error:  # YAML knows dates and binary, JSON does not
        raise TeddyError(f"configuration: {error}") from None


def parse_assignment(assignment: str) -> tuple[str, Any]:
    """`key.path=value`, the value read as YAML."""
    path, equals, text = assignment.partition("=")
    if not equals or not path:
        raise TeddyError(f"--set {assignment}: write key.path=value, e.g. --set method.iterations=400")
    try:
        return path, parse_yaml(text)
    except yaml.YAMLError:
        raise TeddyError(f"--set {path}: '{text}' is not a value YAML can read") from None


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path of `tree`."""
    *parents, last = path.split(".")
    node = tree
    for parent in parents:
        if not isinstance(node.setdefault(parent, {}), dict):
            raise TeddyError(f"{path}: '{parent}' holds a value, not further keys")
        node = node[parent]
    node[last] = value


def read_recipe(path: Path) -> dict[str, Any]:
    """A recipe file as a nested dictionary."""
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TeddyError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise TeddyError(f"{path}: a recipe is a mapping of keys to values, this is a {type(tree).__name__}")
    return tree


class _Loader(yaml.SafeLoader):
    """YAML as people write it: 1e-4 is a number, which YAML 1.1 takes for text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse_yaml(text: str) -> Any:
    """Plain values only: nothing in the text can run."""
    return yaml.load(text, Loader=_Loader)  # a subclass of SafeLoader


def _one_line(error: ValidationError, kind: type[Settings]) -> TeddyError:
    first = error.errors()[0]
    # Unions put the name of the tried type into the path; keys of ours are plain words or numbers.
    location = [part for part in first["loc"] if re.fullmatch(r"\w+", str(part))]
    path = ".".join(str(part) for part in location)
    if first["type"] == "extra_forbidden":
        parent: Any = kind
        for part in location[:-1]:
            parent = parent.model_fields[part].annotation
        prefix = "".join(f"{part}." for part in location[:-1])
        return unknown("key", path, [prefix + name for name in parent.model_fields])
    if first["type"] == "missing":
        return TeddyError(f"{path}: is needed and not given")
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return TeddyError(f"{path}: {message}" if path else message)
    return TeddyError(f"{path}: {message[0].lower()}{message[1:]}, not {first['input']!r}")
