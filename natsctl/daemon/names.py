"""Which known name somebody may have meant."""

import difflib
from collections.abc import Collection


def meant(name: str, known: Collection[str]) -> str:
    """Return `; did you mean x?` where something known is much like *name*, else nothing."""
    lower = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), lower, n=1)
    return f"; did you mean {lower[found[0]]}?" if found else ""
