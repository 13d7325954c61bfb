"""Proves that a stream is still the one that a watch has seen, so that the watch can continue.

A sequence alone proves nothing: a recreated bucket, a restored one and one that lost its last
writes count on with the same numbers. So a watch notes the messages that it saw last, with the
times at which they were stored. It continues at the oldest of them, and compares what comes again.

- A message at a sequence that was seen is the one that was seen. Otherwise the stream was replaced.
- At least one comes again, so everything before it is still what the watch has seen.
- Each of the others was replaced by a newer message of its key, which comes later. If none comes,
  the message was removed.
"""

from collections.abc import Iterable
from typing import TypeAlias

from natsctl.errors import StoreError

ANCHORS = 32  # keys whose newest messages are noted: a busy key soon replaces its own

Sight: TypeAlias = tuple[str, int, int]
"""A message: its key, its sequence, and when it was stored, in any unit that never repeats."""


class NotResumedError(StoreError):
    """Raised if the stream may not be the one that was seen; `restored` if it surely isn't."""

    def __init__(self, reason: str, *, restored: bool = False) -> None:
        super().__init__(reason)
        self.restored = restored


class Seen:
    """The newest messages of the keys that were seen last, oldest first."""

    def __init__(self) -> None:
        self.newest: dict[str, tuple[int, int]] = {}  # key: sequence and time

    def note(self, sights: Iterable[Sight], *, after: int = 0, gap: bool = False) -> None:
        """Add the messages *after* a sequence; with a *gap*, others were seen just before."""
        newest = self.newest
        if gap:
            newest.clear()
        for key, revision, time in sights:
            if revision > after:
                newest.pop(key, None)
                newest[key] = revision, time
        while len(newest) > ANCHORS:
            del newest[next(iter(newest))]

    @property
    def first(self) -> int:
        return next(iter(self.newest.values()))[0]

    @property
    def last(self) -> int:
        return next(reversed(self.newest.values()))[0]


class Proof:
    """Compares the messages from `Seen.first` on, in their order, with those that were seen.

    Every method raises `NotResumedError` as soon as they differ.
    """

    def __init__(self, seen: Seen) -> None:
        self._last = seen.last
        self._seen = dict(seen.newest)
        self._again: dict[str, tuple[int, int]] | None = {}  # None after the last that was seen
        self._missing: set[str] = set()

    @property
    def compared(self) -> bool:
        """True if every message that was seen has been compared: what follows is new."""
        return self._again is None

    @property
    def missing(self) -> bool:
        """True if a message was replaced, and the newer one of its key hasn't come yet."""
        return not self.compared or bool(self._missing)

    def compare(self, sights: Iterable[Sight]) -> None:
        for key, revision, time in sights:
            if self._again is None or revision > self._last:
                self.all_known_came()
                self._missing.discard(key)
            else:
                self._again[key] = revision, time

    def all_known_came(self) -> None:
        """Judge the messages that came again, because only newer ones follow."""
        if self._again is None:
            return
        seen, again, self._again = self._seen, self._again, None
        sequences = {revision for revision, _ in seen.values()}
        for key, message in again.items():
            if message != seen.get(key):
                restored = key not in seen or message[0] in sequences
                raise NotResumedError(
                    f"{key} isn't what it was at revision {message[0]}", restored=restored
                )
        if not again:
            raise NotResumedError(f"none of the last {len(seen)} keys that were seen is unchanged")
        self._missing = seen.keys() - again.keys()

    def finish(self) -> None:
        """Judge the keys that didn't come again, because no newer message is left."""
        self.all_known_came()
        if self._missing:
            raise NotResumedError(f"{min(self._missing)} is gone")
