"""Teddy distils a large image data set into a small synthetic one on which networks train nearly as well."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from teddy.errors import TeddyError
from teddy.version import __version__

if TYPE_CHECKING:
    from teddy.distilled import DistilledSet
    from teddy.estimation import estimate
    from teddy.exporting import export
    from teddy.inspection import inspect
    from teddy.pipeline import Outcome, distill, evaluate, load, write_report
    from teddy.pooling import make_pool, show_pool
    from teddy.verification import verify

__all__ = [
    "DistilledSet",
    "Outcome",
    "TeddyError",
    "__version__",
    "distill",
    "estimate",
    "evaluate",
    "export",
    "inspect",
    "load",
    "make_pool",
    "show_pool",
    "verify",
    "write_report",
]
# No module has the name of one of these: importing it would hide the function.
_PLACES = {
    "DistilledSet": "distilled",
    "estimate": "estimation",
    "export": "exporting",
    "inspect": "inspection",
    "make_pool": "pooling",
    "show_pool": "pooling",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    # PyTorch takes seconds to import: not before something needs it, so that `teddy --help` answers at once.
    if name in __all__:
        return getattr(import_module(f"teddy.{_PLACES.get(name, 'pipeline')}"), name)
    raise AttributeError(f"module 'teddy' has no attribute '{name}'")
