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


class _Step(msgspec.Struct, frozen=True, gc=False):
    base: int  # the revision written upon, 0 for none
    result: int | None  # the revision written, None for a deletion

    @property
    def order(self) -> tuple[int, bool]:
        """Where it stands among the writes of its key: a deletion follows what it deletes."""
        return (self.base, True) if self.result is None else (self.result, False)


def _ignore(_writer: str) -> None:
    """Nobody asked to be told of writes that were undone."""


class Flight:
    """A write under way; `landed` says what came of it."""

    def __init__(self) -> None:
        self.held: list[Change[Any]] = []
        self.writers = 0


class OwnWrites:
    """Passes on the changes of one store, each with the key whose sync made it, None if none did.

    Others may want to know of it, but not that key. A write of which no change tells was undone
    while nobody watched: its key is told to *undone*.
    """

    def __init__(
        self,
        forward: Callable[[Change[Any], str | None], None],
        undone: Callable[[str], None] = _ignore,
    ) -> None:
        self._forward = forward
        self._undone = undone
        self._flights: dict[str, Flight] = {}
        self._landed: dict[str, dict[_Step, str]] = {}  # not seen yet, and whose they are

    def see(self, change: Change[Any]) -> None:
        """Take a change in: pass it on, now or when the writes of its key under way are done."""
        flight = self._flights.get(change.key)
        if flight is None:
            self._forward(change, self._writer(change))
        else:
            flight.held.append(change)

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

    def landed(self, key: str, *, writer: str, base: int, result: int | None) -> None:
        """Note a write that *writer*'s sync did: from revision *base* (0: none) to *result*.

        A *result* of None is a deletion.
        """
        self._landed.setdefault(key, {})[_Step(base, result)] = writer

    def listed(self) -> None:
        """Give up waiting for the changes that a complete listing has not shown.

        A write that is as new as the listing is given up too: its key is visited once too often.
        """
        landed, self._landed = self._landed, {}
        for writer in {writer for steps in landed.values() for writer in steps.values()}:
            self._undone(writer)

    def _writer(self, change: Change[Any]) -> str | None:
        landed = self._landed.pop(change.key, None)
        if landed is None:
            return None
        seen = _Step(
            0 if change.before is None else change.before.revision,
            None if change.after is None else change.after.revision,
        )
        unseen = {step: writer for step, writer in landed.items() if step.order > seen.order}
        if unseen:
            self._landed[change.key] = unseen
        return landed.get(seen)
