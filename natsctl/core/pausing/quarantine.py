"""Decides which keys are quarantined, because processes died while they synced them."""

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
    """The deaths of the keys of one sync loop.

    `quarantined` has the keys that are not synced, until they change or a person requests it.
    """

    on_over: Callable[[str], None]  # called with each key whose record has to be deleted
    state_of: StateOf
    deaths: dict[str, Deaths] = {}
    quarantined: dict[str, Deaths] = {}
    over: set[str] = set()  # keys whose record has to be deleted

    def found(self, key: str, deaths: Deaths | None) -> None:
        """Note the deaths in the key's record."""
        self.over.discard(key)
        if deaths is None:
            self.deaths.pop(key, None)
            self.quarantined.pop(key, None)
            return
        self.deaths[key] = deaths
        if deaths.count >= DEATHS_MAX and deaths.state == self.state_of(key):
            self.quarantined[key] = deaths

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
        """Forget the deaths: the key changed, a person requested a sync, or a sync has ended."""
        self.quarantined.pop(key, None)
        if self.deaths.pop(key, None) is not None:
            self.over.add(key)
            self.on_over(key)
