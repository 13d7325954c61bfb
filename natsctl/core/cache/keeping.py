"""Decides which values a process keeps, if several processes share the keys of a controller.

Each object belongs to a primary: a primary to itself, a secondary to its owner. A process keeps the
value of an object if it syncs the key of that primary, or may sync it soon.
"""

import asyncio
from collections.abc import Callable, Collection

from natsctl.model.store import Stored

Keeps = Callable[[str], bool]
"""Returns whether this process needs the objects of the primary with this key."""

PrimaryOf = Callable[[Stored], str | None]
"""Returns the primary that an object belongs to; None if every process keeps the value."""


def itself(stored: Stored) -> str | None:
    """Return the key of an object that is a primary."""
    return stored.key


class Keeping:
    """Decides which values a cache keeps.

    `wants_all` is set when somebody reads a value that is not kept; then every value is kept.
    `settled` is True if the value of every cached object that is kept now has been read.

    Args:
        keeps: returns whether this process needs the objects of a primary.
        primary_of: returns the primary of an object, from its value.
        index: the index of the cached objects by their primary; empty for primaries.
        derived: the indexes that have no values for an object that is not kept.
        quiet: report no change of an object whose value is kept neither before nor after.
    """

    def __init__(
        self,
        keeps: Keeps,
        primary_of: PrimaryOf = itself,
        *,
        index: str = "",
        derived: Collection[str] = (),
        quiet: bool = False,
    ) -> None:
        self.wants_all = asyncio.Event()
        self.settled = False
        self.quiet = quiet
        self.index = index
        self.indexes = frozenset({index, *derived})
        self._keeps = keeps
        self.primary_of = primary_of

    def keeps(self, primary: str) -> bool:
        """Return whether this process keeps the objects of the primary."""
        return self._keeps(primary) or self.wants_all.is_set()

    def other_primary(self, stored: Stored) -> str | None:
        """Return the primary of an object whose value is not kept; None if the value is kept."""
        primary = self.primary_of(stored)
        return None if primary is None or self.keeps(primary) else primary
