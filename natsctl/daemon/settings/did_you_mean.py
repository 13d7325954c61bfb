"""Suggests a known name for a misspelled one."""

from collections.abc import Collection
from difflib import SequenceMatcher

BEGINNING_MIN = 3  # characters of an incomplete name
SIMILAR = 0.75


def did_you_mean(name: str, known: Collection[str], *, prefix: str = "") -> str:
    """Return `; did you mean x?` if a known name is near *name*, else an empty text.

    A known name is near if it begins with *name*, has the same letters, or if three quarters of
    both are the same. *prefix* is printed before the known name.
    """
    typed = name.lower()
    ratios = {one: SequenceMatcher(None, typed, one.lower()).ratio() for one in sorted(known)}
    near = {one for one in known if len(typed) >= BEGINNING_MIN and one.lower().startswith(typed)}
    near = near or {one for one, ratio in ratios.items() if ratio >= SIMILAR}
    near = near or {one for one in known if typed and sorted(one.lower()) == sorted(typed)}
    nearest = max(sorted(near), key=lambda one: ratios[one], default=None)
    return "" if nearest is None else f"; did you mean {prefix}{nearest}?"
