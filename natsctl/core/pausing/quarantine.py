"""Decides which keys are synced alone or not at all, because processes died during their syncs.

After a process died, the keys that it was syncing are *suspects*. Each is synced alone, after all
keys that were waiting before it. Only the death of a process that synced a single key counts
against that key, so the key that kills is found, and no other key is quarantined with it.
"""

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from natsctl.errors import DECODE_ERRORS
from natsctl.model.times import time_text

DEATHS_MAX = 3  # in a row, after which a key is quarantined


class Deaths(msgspec.Struct, frozen=True, kw_only=True):
    """The deaths of processes that held a key, since a sync of the key last ended."""

    count: int
    last: str  # the time at which the last one was found (RFC 3339)
    state: str  # a digest of the desired state of the object
    processes: tuple[str, ...] = ()  # the last processes that died, so that no death counts twice

    def __str__(self) -> str:
        """Return the deaths as a phrase."""
        processes = "1 process" if self.count == 1 else f"{self.count} processes"
        return f"{processes} died during its sync, the last before {self.last}"


def deaths_in(value: bytes) -> Deaths | None:
    """Return the deaths in a record, None if the record does not decode."""
    try:
        return msgspec.json.decode(value, type=Deaths)
    except DECODE_ERRORS:
        return None


def one_more(before: Deaths | None, state: str, process: str) -> Deaths:
    """Return the deaths with that of the *process*, unless they have it already.

    Deaths of another desired state do not count.
    """
    if before is None or before.state != state:
        before = Deaths(count=0, last="", state=state)
    if process in before.processes:
        return before
    last = time_text(datetime.now(UTC))
    processes = (*before.processes, process)[-DEATHS_MAX:]
    return Deaths(count=before.count + 1, last=last, state=state, processes=processes)


StateOf = Callable[[str], str | None]
"""Returns a digest of the desired state of a key's object; None if the state is not known."""


class Quarantine(msgspec.Struct, eq=False):
    """The suspects and the quarantined keys of one sync loop.

    `quarantined` has the keys that are not synced, until they change or a person requests it.
    """

    on_over: Callable[[str], None]  # called with each key whose record has to be deleted
    state_of: StateOf
    wary: set[object] = set()  # has this while there is anything to ask before a sync
    deaths: dict[str, Deaths] = {}
    quarantined: dict[str, Deaths] = {}
    suspects: dict[str, float | None] = {}  # and the loop time at which each first came up
    recording_since: float | None = None  # each claim is recorded in NATS before its sync
    over: set[str] = set()  # keys whose record has to be deleted

    def suspect(self, key: str) -> None:
        """Sync the key alone from now on, until a sync of it has ended."""
        self.suspects.setdefault(key, None)
        self.wary.add(self)

    def record_claims(self, now: float) -> None:
        """Record each claim from now on, until all keys that wait now were synced."""
        if self.recording_since is None:
            self.recording_since = now
            self.wary.add(self)

    def must_wait(self, key: str, now: float, waits_since: Callable[[float], bool]) -> bool:
        """Return whether a suspect has to wait, because other keys were waiting before it.

        *waits_since* returns whether the queue has a key that waits since that time, or longer.
        """
        since = self.suspects[key]
        if since is None:
            since = self.suspects[key] = now
        return waits_since(since)

    def found(self, key: str, deaths: Deaths | None) -> None:
        """Note the deaths in the key's record."""
        self.over.discard(key)
        if deaths is None:
            self.quarantined.pop(key, None)
            if self.deaths.pop(key, None) is not None:  # another process has survived its sync
                self._clear(key)
            return
        self.deaths[key] = deaths
        if deaths.count >= DEATHS_MAX and deaths.state == self.state_of(key):
            self.quarantined[key] = deaths
            self._clear(key)
        else:
            self.suspect(key)

    def check(self) -> None:
        """Compare the deaths with the objects, which are all cached now."""
        for key in list(self.deaths):
            self.check_one(key)

    def check_one(self, key: str) -> None:
        """Release the key if its desired state is not the one with which processes died."""
        deaths, state = self.deaths.get(key), self.state_of(key)
        if deaths is not None and state is not None:
            if deaths.state != state:
                self.release(key)
            else:
                self.found(key, deaths)

    def release(self, key: str) -> None:
        """Forget the deaths: the key changed, or a person requested a sync. It stays a suspect."""
        self.quarantined.pop(key, None)
        if self.deaths.pop(key, None) is not None:
            self.suspect(key)
            self.over.add(key)
            self.on_over(key)

    def survived(self, key: str, waits_since: Callable[[float], bool]) -> None:
        """Note that a sync of the key has ended, and the process lives.

        Claims are recorded until one pass over all keys has ended well.
        """
        self.release(key)
        self._clear(key)
        since = self.recording_since
        if since is not None and not self.suspects and not waits_since(since):
            self.recording_since = None
            self._relax()

    def _clear(self, key: str) -> None:
        self.suspects.pop(key, None)
        self._relax()

    def _relax(self) -> None:
        if not self.suspects and self.recording_since is None:
            self.wary.discard(self)
