"""Pauses keys by the annotations of their objects, and a whole controller by a record.

The annotation of an object decides whether its key is paused. A deleted object stays paused if its
last state was: a process that has seen that state remembers it, and any other process reads the
bucket's history, until a purge deletes the history. The record `controllers.NAME.paused` in the
bucket `natsctl` has the pause of a whole controller, as text (`natsctl.model.pause`).
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from natsctl.core.environment import environment
from natsctl.core.failing import FailingKeys
from natsctl.core.informer import Informer
from natsctl.core.quarantine import ClaimedKeys, CrashRecords, Quarantine
from natsctl.core.table import is_read
from natsctl.core.task_group import together
from natsctl.core.workqueue import WorkQueue
from natsctl.errors import PermissionDeniedError, StoreError
from natsctl.model.bookkeeping import PAUSES, Deaths, controller_record
from natsctl.model.kinds import KvKind
from natsctl.model.pause import MARK, Pause, parse_pause, pause_in
from natsctl.model.store import Change, EventType, Store, Stored, Stores
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

RECHECK_S = 60.0  # a suspended machine delays timers: the ends of pauses are checked this often
LISTED_S = 5.0  # how long a start waits until the records are listed

REASON_PAUSED, REASON_RESUMED = "Paused", "Resumed"
REASON_DIED, REASON_QUARANTINED = "ProcessDied", "Quarantined"
WHOLE = "-"
"""The key of events about a whole controller."""

RecordEvent = Callable[[str, EventType, str, str], None]
"""Records an event: the key, the type, the reason and the message."""

OnPaused = Callable[[str, Pause], None]
"""Called with a key and its pause; not for pauses from before the start."""

OnResumed = Callable[[str, Pause, bool], None]
"""Called with a key, the pause that is over, and whether a sync was held back."""


class Pauses(dict[str, Pause]):
    """The pauses by key, each until it ends.

    *on_change* is called with a key, its pause before and after, and whether to *notify* people.
    """

    def __init__(self, on_change: Callable[[str, Pause | None, Pause | None, bool], None]) -> None:
        super().__init__()
        self._on_change = on_change
        self._timer: asyncio.TimerHandle | None = None
        self._first: tuple[float, datetime] | None = None  # both clocks at the first read

    def put(self, key: str, pause: Pause | None, *, notify: bool) -> None:
        """Set the key's pause, unless it has ended, or remove it."""
        before, left_s = self.get(key), 0.0 if pause is None else self._left_s(pause)
        if pause is not None and left_s > 0:
            self[key] = pause
            if left_s < math.inf:
                self._wait(left_s)
            if before != pause:
                self._on_change(key, before, pause, notify)
        elif before is not None:
            del self[key]
            self._on_change(key, before, None, notify)

    def close(self) -> None:
        """End no more pauses by themselves."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _left_s(self, pause: Pause) -> float:
        """Return the seconds until the pause ends; infinity if it has no end.

        The time of day never runs behind the clock of the event loop.
        """
        if pause.ends is None:
            return math.inf
        loop_s, time = asyncio.get_running_loop().time(), datetime.now(UTC)
        first_s, first = self._first = self._first or (loop_s, time)
        now = max(time, first + timedelta(seconds=loop_s - first_s))
        return (pause.ends - now).total_seconds()

    def _wait(self, left_s: float) -> None:
        """Look for ended pauses after *left_s* seconds, unless that happens sooner."""
        loop = asyncio.get_running_loop()
        due = loop.time() + min(left_s, RECHECK_S)
        if self._timer is None or self._timer.when() > due:
            self.close()
            self._timer = loop.call_at(due, self._end)

    def _end(self) -> None:
        self._timer = None
        for key, pause in tuple(self.items()):
            if pause.until:
                self.put(key, pause, notify=True)


class PausedKeys:
    """The paused keys of one sync loop, which syncs the keys that it *holds*."""

    def __init__(
        self,
        queue: WorkQueue[Any],
        crashes: CrashRecords | None = None,
        *,
        holds: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.pauses = Pauses(self._changed)  # also of deleted objects
        crashes = CrashRecords("", ClaimedKeys()) if crashes is None else crashes
        self.quarantine = Quarantine(crashes, queue, holds)
        self.queue = queue
        self._holds = holds
        self._informers: Sequence[Informer[Any]] = ()
        self._outlast = False  # whether pauses outlast the objects
        self._on_paused: list[OnPaused] = []
        self._on_resumed: list[OnResumed] = []

    def __len__(self) -> int:
        return sum(map(self._holds, self.pauses))

    def follow(self, informers: Sequence[Informer[Any]], *, outlast: bool = True) -> None:
        """Find out in these informers' tables which objects exist; call `observe` for them.

        Unless pauses *outlast* the objects, and for objects in a cluster, a deletion ends a pause.
        """
        self._informers = informers
        kinds = [informer.table.kind for informer in informers]
        self._outlast = outlast and any(isinstance(kind, KvKind) for kind in kinds)
        self.quarantine.follow(informers)

    def listen(self, on_resumed: OnResumed, on_paused: OnPaused | None = None) -> None:
        self._on_resumed.append(on_resumed)
        if on_paused is not None:
            self._on_paused.append(on_paused)

    # ---- the decision

    def reason(self, key: Any) -> str | None:
        if key in self.pauses:
            return f"paused {self.pauses[key]}"
        deaths = self.quarantine.quarantined.get(key)
        return None if deaths is None else f"quarantined: {deaths}"

    def holds_back(self, key: Any) -> bool:
        """Return whether the key may not be synced, and remember that a sync was held back."""
        if self.reason(key) is None:
            return False
        self.queue.note(key).held_back = True
        return True

    # ---- what changes it

    def concerns(self, change: Change[Any]) -> bool:
        """Return whether `observe` could change anything; cheap, for the path of every change."""
        after = change.after
        if after is not None and after.value.rfind(MARK) >= 0:  # `in` takes twice as long
            return True
        return change.key in self.pauses or change.key in self.quarantine.deaths

    def observe(self, change: Change[Any]) -> None:
        """Read the annotation of a changed object; call this for every change."""
        key, after = change.key, change.after
        if after is not None and not is_read(after):
            self._forget(key)
            return
        if key in self.quarantine.deaths:
            self.quarantine.check_one(key)
        if after is not None:
            pause = None if change.kind.plain else pause_in(after.value)
            self.pauses.put(key, pause, notify=not change.initial or change.before is not None)
        elif not self._outlast or (change.purged and change.before is None):
            self.pauses.put(key, None, notify=True)

    async def recall(self, key: str, store: Store) -> bool:
        """Return whether a deleted key is paused: its last state in the *store*'s history decides.

        The process may not have seen that state.
        """
        if not self._outlast or key in self.pauses:
            return key in self.pauses
        states = [state for state in await store.history(key) if isinstance(state, Stored)]
        if states and not any(key in informer.table for informer in self._informers):
            self.pauses.put(key, pause_in(states[-1].value), notify=False)
        return key in self.pauses

    def forget_unread(self) -> None:
        """Forget the pauses of objects whose values this process does not keep any more.

        The value shows the pause when this process reads it again.
        """
        tables = [informer.table for informer in self._informers if informer.table.partial]
        for key in {*self.pauses, *self.quarantine.quarantined} if tables else ():
            states = (table.newest(key) for table in tables)
            if any(stored is not None and not is_read(stored) for stored in states):
                self._forget(key)

    def _forget(self, key: str) -> None:
        self.pauses.pop(key, None)
        self.quarantine.quarantined.pop(key, None)
        self._answer(key)

    def _answer(self, key: str) -> bool:
        """Forget that a sync was held back; return whether one was."""
        noted = self.queue.noted(key)
        if noted is None or not noted.held_back:
            return False
        noted.held_back = False
        self.queue.tidy(key)
        return True

    def _changed(self, key: str, before: Pause | None, after: Pause | None, notify: bool) -> None:  # noqa: FBT001 - see `Pauses`
        if after is None:
            pending = self._answer(key)
            for on_resumed in self._on_resumed:
                on_resumed(key, cast("Pause", before), pending)
        elif notify:
            for on_paused in self._on_paused:
                on_paused(key, after)


class Pausing:
    """The pauses of one controller.

    `whole` is the pause of the whole controller; no worker takes a key then.
    """

    def __init__(self, controller: str) -> None:
        self.controller = controller
        self.claims = environment().claims or ClaimedKeys()
        self.failing = FailingKeys(controller)
        self.whole: Pause | None = None
        self.listed = asyncio.Event()  # the records are known, or not followed
        self.listed.set()
        self._running = asyncio.Event()  # the controller is not paused
        self._running.set()
        self._whole = Pauses(self._whole_changed)
        self._crashes = CrashRecords(controller, self.claims, self._report_death)
        self._keys: list[PausedKeys] = []
        self._holds: Callable[[str], bool] = lambda _: False
        self._event: RecordEvent = lambda *_: None

    def keys(self, queue: WorkQueue[Any], holds: Callable[[str], bool]) -> PausedKeys:
        """Return the paused keys of one more sync loop, which syncs the keys that it *holds*."""
        paused = PausedKeys(queue, self._crashes, holds=holds)
        paused.listen(self._resumed, self._paused)
        self._keys.append(paused)
        return paused

    def report_to(self, event: RecordEvent, *, holds: Callable[[str], bool]) -> None:
        """Log every later pause and resumption, and record it as an event.

        Only pauses of keys that this process *holds* are reported.
        """
        self._event, self._holds = event, holds

    @property
    def count(self) -> int:
        return sum(map(len, self._keys))

    def of(self, key: str) -> Pause | None:
        """Return the pause of a key, or of the whole controller; None if neither is paused."""
        pauses = (paused.pauses.get(key) for paused in self._keys)
        return self.whole or next((pause for pause in pauses if pause is not None), None)

    def advice(self, key: str, source: str) -> str:
        """Return that the key of *source* is paused, and how to resume it; empty if it isn't."""
        if self.whole is not None:
            command = f"natsctl resume --all -c {self.controller}"
            return f"controller {self.controller} is paused {self.whole}: {command}"
        pause = self.of(key)
        return "" if pause is None else f"{key} is paused {pause}: natsctl resume {source}/{key}"

    def is_pending(self, key: str) -> bool:
        notes = (paused.queue.noted(key) for paused in self._keys)
        return any(noted is not None and noted.held_back for noted in notes)

    def pauses(self) -> dict[str, Pause]:
        return {key: pause for paused in self._keys for key, pause in paused.pauses.items()}

    def quarantined(self) -> dict[str, Deaths]:
        quarantines = (paused.quarantine.quarantined for paused in self._keys)
        return {key: deaths for each in quarantines for key, deaths in each.items()}

    async def wait_running(self) -> None:
        await self._running.wait()

    # ---- records

    @asynccontextmanager
    async def watching(self, stores: Stores | None) -> AsyncIterator[None]:
        """Follow and write the records in *stores* while the context lasts.

        Without stores there are no records, and only annotations pause keys.
        """
        kind, store = PAUSES.part(f"controllers.{self.controller}.>"), None
        try:
            if stores is not None:
                try:
                    store = await stores.open(kind)
                except StoreError as error:
                    log.warning("cannot read the pauses of controllers", error=error)
            if store is None:
                yield
                return
            self.listed.clear()
            self._crashes.store = store
            self.failing.follows = not getattr(stores, "forgets", False)  # plans, simulations
            informer = Informer(store, kind, on_listed=self.listed.set)
            await informer.add(self._observe)
            async with together() as group:
                late = asyncio.get_running_loop().call_later(LISTED_S, self._give_up, informer)
                tasks = [
                    group.create_task(self._follow(informer), name="watch of pauses"),
                    group.create_task(self._crashes.write(self.listed), name="records of crashes"),
                    group.create_task(self.failing.write(store), name="records of failures"),
                ]
                try:
                    yield
                finally:
                    late.cancel()
                    for task in tasks:
                        task.cancel()
                    await self._crashes.close()
                    await self.failing.close(store)
        finally:
            for paused in self._keys:
                paused.pauses.close()
            self._whole.close()

    async def _follow(self, informer: Informer[Any]) -> None:
        """Follow the records; without the permission, try again from time to time."""
        denied = ""
        while True:
            try:
                await informer.run(is_final=lambda error: isinstance(error, PermissionDeniedError))
            except PermissionDeniedError as error:
                self.listed.set()
                if str(error) != denied:
                    log.warning("cannot read the pauses of controllers", error=error)
                denied = str(error)
                await asyncio.sleep(RECHECK_S)

    def _give_up(self, informer: Informer[Any]) -> None:
        if not self.listed.is_set():
            log.warning(
                "cannot list the pauses in the bucket natsctl: a paused controller may sync",
                controller=self.controller,
                error=informer.failure,
            )
            self.listed.set()

    def _observe(self, change: Change[Any]) -> None:
        if change.key.startswith(self.failing.prefix):
            self.failing.observe(change.key, change.after)
        elif change.key == controller_record(self.controller):
            text = None if change.after is None else change.after.value.decode(errors="replace")
            pause = None if text is None else parse_pause(text)
            self._whole.put(WHOLE, pause, notify=not change.initial)
        else:
            self._crashes.observe(change)

    def _whole_changed(
        self,
        _key: str,
        before: Pause | None,
        after: Pause | None,
        notify: bool,  # noqa: FBT001 - see `Pauses`
    ) -> None:
        self.whole = after
        if after is None:
            self._running.set()
        else:
            self._running.clear()
        if notify and after is not None:
            log.warning("the controller is paused", controller=self.controller, pause=after)
            self._event(WHOLE, EventType.NORMAL, REASON_PAUSED, f"paused {after}")
        elif notify:
            log.info("the controller is resumed", controller=self.controller)
            self._event(WHOLE, EventType.NORMAL, REASON_RESUMED, f"resumed; it was paused {before}")

    # ---- reports

    def _paused(self, key: str, pause: Pause) -> None:
        if self._holds(key):
            log.info("a key is paused", controller=self.controller, key=key, pause=pause)
            self._event(key, EventType.NORMAL, REASON_PAUSED, f"paused {pause}")

    def _resumed(self, key: str, pause: Pause, pending: bool) -> None:  # noqa: FBT001 - see `OnResumed`
        if self._holds(key):
            log.info("a key is resumed", controller=self.controller, key=key, pending=pending)
            self._event(key, EventType.NORMAL, REASON_RESUMED, f"resumed; it was paused {pause}")

    def _report_death(self, key: str, deaths: Deaths, *, quarantined: bool) -> None:
        name, count = self.controller, deaths.count
        if not quarantined:
            log.warning(
                "a process died during a sync of the key", controller=name, key=key, deaths=count
            )
            self._event(key, EventType.WARNING, REASON_DIED, str(deaths))
            return
        advice = "not synced until it changes, or natsctl resync names it"
        log.error(
            "a key is quarantined: it is not synced until it changes, or `natsctl resync` names it",
            controller=name,
            key=key,
            deaths=count,
        )
        self._event(key, EventType.WARNING, REASON_QUARANTINED, f"{deaths}: {advice}")
