"""Errors that are part of the product: one line that names the thing, the place and the fix."""

from collections.abc import Iterable
from difflib import get_close_matches


class TeddyError(Exception):
    """A user's mistake, or a condition only the user can change. The command line prints it and exits with 2."""

    exit_code = 2


class NumbersError(TeddyError):
    """Numbers that have gone wrong somewhere, while the rest is fine and kept. The command line exits with 3."""

    exit_code = 3


def unknown(kind: str, name: str, known: Iterable[str]) -> TeddyError:
    """An unknown `name`, with the nearest known ones, or all of them where none is near and they are few."""
    names = sorted(known)
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        hint = "did you mean " + " or ".join(repr(n) for n in near) + "?"
    elif len(names) <= 12:
        hint = "known: " + ", ".join(names)
    else:
        hint = f"'teddy list' shows the {len(names)} known ones"
    return TeddyError(f"unknown {kind} '{name}'; {hint}")
