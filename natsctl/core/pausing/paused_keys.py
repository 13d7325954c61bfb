"""Decides which keys are paused, and remembers those whose sync was held back.

The annotation of an existing object decides. A deleted object was paused if its last state was; its
record keeps that across restarts, until a person resumes the key.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from natsctl.core.compare_and_set import read
from natsctl.core.informer import Informer
from natsctl.core.pausing.clock import Clock
from natsctl.core.pausing.quarantine import Quarantine
from natsctl.core.table import is_read
from natsctl.model.kinds import KvKind
from natsctl.model.pause import MARK, Pause, pause_in
from natsctl.model.store import Change
from natsctl.slices import retain

RECHECK_S = 60.0  # a suspended machine delays timers: the ends of pauses are checked this often


class PauseListener(Protocol):
    """Is notified when keys are paused and resumed."""

    def paused(self, key: str, pause: Pause) -> None:
        """Note that the key is paused; not called for pauses from before the start."""
        ...

    def resumed(self, key: str, pause: Pause, *, pending: bool) -> None:
        """Note that the *pause* of the key is over; *pending* if a sync was held back."""
        ...


class PausedKeys:
    """The paused keys of one sync loop.

    Args:
        on_unrecorded: called with each key whose record may have to be written or deleted.
        holds: returns whether this process syncs a key; only then it writes the key's records.
        wary: see `ClaimedKeys`.
    """

    def __init__(
        self,
        on_unrecorded: Callable[[str], None] = lambda _: None,
        *,
        holds: Callable[[str], bool] = lambda _: True,
        wary: set[object] | None = None,
    ) -> None:
        self.holds = holds
        self.pauses: dict[str, Pause] = {}  # by paused key
        self.name = ""  # of the sync loop, unique on this machine
        self.bucket = ""  # the bucket of the objects; empty if no record can be kept of them
        self.place = ""  # the bucket or the kind of the objects, in the names of records
        self.quarantine = Quarantine(on_unrecorded, self.state, set() if wary is None else wary)
        self._on_unrecorded = on_unrecorded
        self._informers: Sequence[Informer[Any]] = ()
        self._annotated: dict[str, Pause] = {}  # the last annotation, also of deleted objects
        self._recorded: dict[str, Pause | None] = {}  # None if a person resumed a deleted key
        self._synced: set[str] = set()  # deleted keys that were synced after they were resumed
        self._pending: set[str] = set()  # paused keys whose sync was held back
        self._listeners: list[PauseListener] = []
        self._timer: asyncio.TimerHandle | None = None
        self._clock = Clock()

    def __len__(self) -> int:
        """Return how many paused keys this process would sync."""
        return sum(map(self.holds, self.pauses))

    def follow(self, informers: Sequence[Informer[Any]], *, records: bool = True) -> None:
        """Use these informers' caches to find out which objects exist; call `observe` for them.

        Without *records*, and for objects in a cluster, a deletion ends a pause.
        """
        self._informers = informers
        kinds = [informer.cache.kind for informer in informers if records]
        self.bucket = next((kind.bucket for kind in kinds if isinstance(kind, KvKind)), "")
        self.place = self.bucket or "".join(kind.name.replace(".", "_") for kind in kinds[:1])

    def close(self) -> None:
        """End no more pauses by themselves."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def listen(self, listener: PauseListener) -> None:
        """Notify *listener* of every later pause and resumption."""
        self._listeners.append(listener)

    def exists(self, key: str) -> bool:
        """Return whether the object exists, as cached."""
        return any(key in informer.cache for informer in self._informers)

    def holds_back(self, key: Any) -> bool:
        """Return whether the key is paused; if it is, remember that a sync was held back."""
        if key not in self.pauses and key not in self.quarantine.quarantined:
            return False
        self._pending.add(key)
        return True

    def reason(self, key: Any) -> str:
        """Return why the key is held back; empty if it is not."""
        if key in self.pauses:
            return f"paused {self.pauses[key]}"
        deaths = self.quarantine.quarantined.get(key)
        return "" if deaths is None else f"quarantined: {deaths}"

    def state(self, key: str) -> str | None:
        """Return a digest of the desired state of the object; empty if it does not exist.

        Returns None if this process does not keep the object's value.
        """
        for informer in self._informers:
            stored = informer.cache.newest(key)
            if stored is not None:
                return informer.cache.kind.digest(stored.value) if is_read(stored) else None
        return ""

    async def read_state(self, key: str) -> str:
        """Return `state`, and read the object from the store if its value is not kept."""
        state = self.state(key)
        for informer in self._informers:
            if state is None and key in informer.cache:
                stored = await read(informer.store, key)
                return "" if stored is None else informer.cache.kind.digest(stored.value)
        return state or ""

    def is_pending(self, key: str) -> bool:
        """Return whether a sync of the paused key was held back."""
        return key in self._pending

    async def keep(self, wanted: Callable[[str], bool]) -> None:
        """Forget the held back syncs of keys that are not *wanted*: another process syncs them."""
        await retain(self._pending, wanted, self._pending.discard)

    def observe(self, change: Change[Any]) -> None:
        """Read the annotation of a changed object; call this for every change."""
        key, after = change.key, change.after
        if after is not None and not is_read(after):
            self._forget(key)
            return
        if key in self.quarantine.deaths:
            self.quarantine.check_one(key)
        if after is None:
            if not self.bucket:  # nothing would resume a deleted object
                self._annotated.pop(key, None)
            self._refresh(key, notify=True)
            return
        pause = pause_in(after.value) if MARK in after.value and not change.kind.plain else None
        if pause is None:
            self._annotated.pop(key, None)
        else:
            self._annotated[key] = pause
        self._synced.discard(key)
        self._refresh(key, notify=not change.initial or change.before is not None)

    @property
    def knows(self) -> bool:
        """True if `observe` could do anything for a change of an object without an annotation."""
        return bool(self._annotated or self._recorded or self.quarantine.deaths)

    def concerns(self, change: Change[Any]) -> bool:
        """Return whether `observe` could change anything; cheap, for the path of every change."""
        after = change.after
        if after is not None and after.value.rfind(MARK) >= 0:  # `in` takes twice as long
            return True
        key = change.key
        return key in self._annotated or key in self._recorded or key in self.quarantine.deaths

    def forget_unread(self) -> None:
        """Forget the pauses of objects whose values this process does not keep any more.

        The value shows the pause when this process reads it again.
        """
        caches = [informer.cache for informer in self._informers if informer.cache.partial]
        for key in {*self._annotated, *self.quarantine.quarantined} if caches else ():
            states = (cache.newest(key) for cache in caches)
            if any(stored is not None and not is_read(stored) for stored in states):
                self._forget(key)

    def _forget(self, key: str) -> None:
        self._annotated.pop(key, None)
        self.pauses.pop(key, None)
        self._pending.discard(key)
        self.quarantine.quarantined.pop(key, None)

    # ---- records

    def check_records(self) -> None:
        """Check all records, because this process may write those of its keys now."""
        for key in {*self.pauses, *self._recorded, *self.quarantine.over}:
            self._on_unrecorded(key)

    def recorded(self, key: str, pause: Pause | None) -> None:
        """Note the record of a key; a record without a *pause* resumes a deleted key."""
        self._recorded[key] = pause
        self._refresh(key, notify=False)

    def unrecorded(self, key: str) -> None:
        """Note that the key has no record any more, which resumes a deleted key."""
        if self._recorded.pop(key, None) is not None and not self.exists(key):
            self._annotated.pop(key, None)
        self._refresh(key, notify=False)

    def needs_record(self, key: str) -> Pause | None:
        """Return the pause that has to be recorded; None if the record is right or superfluous."""
        pause = self.pauses.get(key)
        return None if pause is None or self._recorded.get(key) == pause else pause

    def has_superfluous_record(self, key: str) -> bool:
        """Return whether the key's record has to be deleted."""
        if key in self.pauses or key not in self._recorded:
            return False
        resumed = self._recorded[key] is None
        return self.exists(key) or not resumed or key in self._synced

    def recover(self, key: str, pause: Pause) -> bool:
        """Pause a deleted key whose last state in the bucket's history was paused.

        Returns whether the key is paused now; a key that a person has resumed is not.
        """
        if key not in self._recorded:
            self._annotated[key] = pause
            self._refresh(key, notify=False)
        return key in self.pauses

    def synced_deleted(self, key: str) -> None:
        """Note that a deleted key was synced, so that its record is superfluous."""
        self._annotated.pop(key, None)
        if key in self._recorded:
            self._synced.add(key)
            self._on_unrecorded(key)

    # ---- the decision

    def _effective(self, key: str) -> Pause | None:
        if key in self._recorded and not self.exists(key):
            pause = self._recorded[key]
        else:
            pause = self._annotated.get(key)
        if pause is None or not pause.until:
            return pause
        return None if self._clock.left_s(pause) <= 0 else pause

    def _refresh(self, key: str, *, notify: bool) -> None:
        before, after = self.pauses.get(key), self._effective(key)
        if after is None:
            self.pauses.pop(key, None)
        else:
            self.pauses[key] = after
            if after.until:
                self._wait(self._clock.left_s(after))
        self._on_unrecorded(key)
        if after is not None and before != after and notify:
            for listener in self._listeners:
                listener.paused(key, after)
        elif before is not None and after is None:
            pending = key in self._pending
            self._pending.discard(key)
            for listener in self._listeners:
                listener.resumed(key, before, pending=pending)

    def _wait(self, left_s: float) -> None:
        """Look for ended pauses after *left_s* seconds, unless that happens sooner."""
        loop = asyncio.get_running_loop()
        due = loop.time() + min(max(left_s, 0.0), RECHECK_S)
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self._end_pauses)

    def _end_pauses(self) -> None:
        self._timer = None
        for key in [key for key, pause in self.pauses.items() if pause.until]:
            if self._clock.left_s(self.pauses[key]) <= 0:
                self._refresh(key, notify=True)
        remaining_s = [self._clock.left_s(pause) for pause in self.pauses.values() if pause.until]
        if remaining_s:
            self._wait(min(remaining_s))
