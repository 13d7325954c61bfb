"""Which changes of a store are our own doing, and so no news to whoever made them.

A change is ours exactly if it leads from the revision that we wrote upon to the one that we
wrote: had anybody else written in between, the change would be another. A change may be seen
before its write is acknowledged, so changes of a key under write are held until it is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from natsctl.model.store import Change


class _Write(msgspec.Struct, frozen=True, gc=False):
    base: int  # the revision written upon, 0 for none
    result: int | None  # the revision written, None for a deletion


class Flight:
    """A write under way; `landed` says what came of it."""

    def __init__(self) -> None:
        self.held: list[Change[Any]] = []
        self.writers = 0


class OwnWrites:
    """Passes on the changes of one store that are not our own."""

    def __init__(self, forward: Callable[[Change[Any]], None]) -> None:
        self._forward = forward
        self._flights: dict[str, Flight] = {}
        self._landed: dict[str, _Write] = {}

    def see(self, change: Change[Any]) -> None:
        """Take a change in: swallow it, hold it or pass it on."""
        flight = self._flights.get(change.key)
        if flight is not None:
            flight.held.append(change)
        elif not self._ours(change):
            self._forward(change)

    @contextmanager
    def writing(self, key: str) -> Iterator[None]:
        """Hold changes of *key* until the write inside is done."""
        flight = self._flights.setdefault(key, Flight())
        flight.writers += 1
        try:
            yield
        finally:
            flight.writers -= 1
            if flight.writers == 0:
                del self._flights[key]
                for change in flight.held:
                    self.see(change)

    def landed(self, key: str, *, base: int, result: int | None) -> None:
        """Note a write that succeeded: from revision *base* (0: none) to *result* (None: gone)."""
        self._landed[key] = _Write(base, result)

    def _ours(self, change: Change[Any]) -> bool:
        landed = self._landed.get(change.key)
        if landed is None:
            return False
        base = 0 if change.before is None else change.before.revision
        result = None if change.after is None else change.after.revision
        ours = (base, result) == (landed.base, landed.result)
        if ours or result is None or (landed.result is not None and result >= landed.result):
            del self._landed[change.key]
        return ours
