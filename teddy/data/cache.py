"""Where what can be made again is kept between runs."""

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """The user's cache; None where there is no home to keep it in."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(named) if named.startswith("/") else Path.home() / ".cache") / "teddy"
    except RuntimeError:
        return None
