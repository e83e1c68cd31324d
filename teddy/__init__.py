"""Teddy distils a large image data set into a small synthetic one on which networks train nearly as well."""

from typing import TYPE_CHECKING, Any

from teddy.errors import TeddyError
from teddy.version import __version__

if TYPE_CHECKING:
    from teddy.distilled import DistilledSet
    from teddy.pipeline import Outcome, distill, evaluate, load, write_report

__all__ = ["DistilledSet", "Outcome", "TeddyError", "__version__", "distill", "evaluate", "load", "write_report"]


def __getattr__(name: str) -> Any:
    # PyTorch takes seconds to import: not before something needs it, so that `teddy --help` answers at once.
    if name in __all__:
        from teddy import distilled, pipeline

        return distilled.DistilledSet if name == "DistilledSet" else getattr(pipeline, name)
    raise AttributeError(f"module 'teddy' has no attribute '{name}'")
