"""Suggests a known name for a misspelled one."""

from collections.abc import Collection
from difflib import get_close_matches

BEGINNING_MIN = 3  # characters of an incomplete name
SIMILAR = 0.75


def did_you_mean(name: str, known: Collection[str], *, prefix: str = "") -> str:
    """Return `; did you mean x?` if a known name is near *name*, else an empty text.

    A known name is near if it begins with *name*, or if three quarters of both are the same, or if
    it has the same letters. *prefix* is printed before the known name.
    """
    typed, names = name.lower(), {one.lower(): one for one in sorted(known)}
    begun = [one for one in names if len(typed) >= BEGINNING_MIN and one.startswith(typed)]
    same = [one for one in names if typed and sorted(one) == sorted(typed)]
    near = get_close_matches(typed, begun, 1, 0) or get_close_matches(typed, names, 1, SIMILAR)
    nearest = next(iter(near or same), None)
    return "" if nearest is None else f"; did you mean {prefix}{names[nearest]}?"
