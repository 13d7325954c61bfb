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
from typing import Any

from natsctl.core.environment import environment
from natsctl.core.history import FailingKeys
from natsctl.core.informer import Informer
from natsctl.core.quarantine import ClaimedKeys, Quarantine
from natsctl.core.table import is_read
from natsctl.core.task_group import together
from natsctl.core.workqueue import Operation, WorkQueue
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
            due = asyncio.get_running_loop().time() + min(left_s, RECHECK_S)
            if left_s < math.inf and (self._timer is None or self._timer.when() > due):
                self.close()
                self._timer = asyncio.get_running_loop().call_at(due, self._end)
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

    def _end(self) -> None:
        self._timer = None
        for key, pause in tuple(self.items()):
            if pause.until:
                self.put(key, pause, notify=True)


class PausedKeys:
    """The paused keys of one sync loop, which syncs the keys that it *holds*.

    A resumed key is offered to the queue if a sync was held back. `on_paused` is called with a
    paused key; not for pauses from before the start.
    """

    def __init__(
        self,
        queue: WorkQueue[Any],
        pausing: "Pausing | None" = None,
        *,
        holds: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.pauses = Pauses(self._changed)  # also of deleted objects
        pausing = Pausing("") if pausing is None else pausing
        self.quarantine = Quarantine(
            pausing.controller,
            len(pausing.keys),
            pausing.claims,
            queue,
            holds=holds,
            report=pausing.report_death,
        )
        pausing.keys.append(self)
        self.queue = queue
        self.holds = holds
        self.on_paused: Callable[[str], None] = lambda _key: None
        self._pausing = pausing
        self._informers: Sequence[Informer[Any]] = ()
        self._outlast = False  # whether pauses outlast the objects

    def follow(self, informers: Sequence[Informer[Any]], *, outlast: bool = True) -> None:
        """Find out in these informers' tables which objects exist; call `observe` for them.

        Unless pauses *outlast* the objects, and for objects in a cluster, a deletion ends a pause.
        """
        self._informers = informers
        kinds = [informer.table.kind for informer in informers]
        self._outlast = outlast and any(isinstance(kind, KvKind) for kind in kinds)
        self.quarantine.follow(informers)

    def reason(self, key: Any) -> str | None:
        """Return why the key may not be synced; None if it may."""
        if key in self.pauses:
            return f"paused {self.pauses[key]}"
        deaths = self.quarantine.of(key)
        return None if deaths is None else f"quarantined: {deaths}"

    def holds_back(self, key: Any) -> bool:
        """Return whether the key may not be synced, and remember that a sync was held back."""
        if self.reason(key) is None:
            return False
        self.queue.note(key).held_back = True
        return True

    def observe(self, change: Change[Any]) -> None:
        """Read the annotation of a changed object; call this for every change."""
        key, after = change.key, change.after
        if key not in self.pauses and (after is None or after.value.rfind(MARK) < 0):
            return  # most changes: `in` takes twice as long as `rfind`
        if after is None:
            if not self._outlast or (change.purged and change.before is None):
                self.pauses.put(key, None, notify=True)
        elif not is_read(after):
            self._forget(key)
        else:
            pause = None if change.kind.plain else pause_in(after.value)
            self.pauses.put(key, pause, notify=not change.initial or change.before is not None)

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
        for key in tuple(self.pauses) if tables else ():
            states = (table.newest(key) for table in tables)
            if any(stored is not None and not is_read(stored) for stored in states):
                self._forget(key)

    def _forget(self, key: str) -> None:
        self.pauses.pop(key, None)
        self._was_held_back(key)

    def _was_held_back(self, key: str) -> bool:
        """Forget that a sync was held back; return whether one was."""
        noted = self.queue.noted(key)
        if noted is None or not noted.held_back:
            return False
        noted.held_back = False
        self.queue.tidy(key)
        return True

    def _changed(self, key: str, before: Pause | None, after: Pause | None, notify: bool) -> None:  # noqa: FBT001 - see `Pauses`
        name, event, holds = self._pausing.controller, self._pausing.event, self.holds(key)
        if after is None:
            pending = self._was_held_back(key)
            if holds and name:
                log.info("a key is resumed", controller=name, key=key, pending=pending)
                event(key, EventType.NORMAL, REASON_RESUMED, f"resumed; it was paused {before}")
            if holds and pending:
                self.queue.offer(key, Operation.RESUME)
        elif notify:
            if holds and name:
                log.info("a key is paused", controller=name, key=key, pause=after)
                event(key, EventType.NORMAL, REASON_PAUSED, f"paused {after}")
            self.on_paused(key)


class Pausing:
    """The pauses of one controller.

    `whole` is the pause of the whole controller; no worker takes a key then. `event` records an
    event: its key, type, reason and message.
    """

    def __init__(self, controller: str) -> None:
        self.controller = controller
        self.claims = environment().claims or ClaimedKeys()
        self.failing = FailingKeys(controller)
        self.whole: Pause | None = None
        self.running = asyncio.Event()  # the controller is not paused
        self.running.set()
        self.listed = asyncio.Event()  # the records are known, or not followed
        self.listed.set()
        self.keys: list[PausedKeys] = []  # of each sync loop
        self.event: Callable[[str, EventType, str, str], None] = lambda *_: None
        self._whole = Pauses(self._whole_changed)

    @property
    def count(self) -> int:
        return sum(sum(map(each.holds, each.pauses)) for each in self.keys)

    def pauses(self) -> dict[str, Pause]:
        return {key: pause for each in self.keys for key, pause in each.pauses.items()}

    def quarantined(self) -> dict[str, Deaths]:
        return {
            k: deaths for each in self.keys for k, deaths in each.quarantine.quarantined.items()
        }

    def of(self, key: str) -> Pause | None:
        """Return the pause of a key, or of the whole controller; None if neither is paused."""
        pauses = (each.pauses[key] for each in self.keys if key in each.pauses)
        return self.whole or next(pauses, None)

    def advice(self, key: str, source: str) -> str:
        """Return that the key of *source* is paused, and how to resume it; empty if it isn't."""
        if self.whole is not None:
            command = f"natsctl resume --all -c {self.controller}"
            return f"controller {self.controller} is paused {self.whole}: {command}"
        pause = self.of(key)
        return "" if pause is None else f"{key} is paused {pause}: natsctl resume {source}/{key}"

    def is_pending(self, key: str) -> bool:
        notes = (each.queue.noted(key) for each in self.keys)
        return any(noted is not None and noted.held_back for noted in notes)

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
            quarantines = [each.quarantine for each in self.keys]
            for quarantine in quarantines:
                quarantine.store = store
            self.failing.follows = not getattr(stores, "forgets", False)  # plans, simulations
            informer = Informer(store, kind, on_listed=self.listed.set)
            await informer.add(self._observe)
            async with together() as group:
                late = asyncio.get_running_loop().call_later(LISTED_S, self._give_up, informer)
                tasks = [
                    group.create_task(self._follow(informer), name="watch of pauses"),
                    group.create_task(self.failing.write(store), name="records of failures"),
                ]
                for each in quarantines:
                    writing = each.write(store, self.listed)
                    tasks.append(group.create_task(writing, name="records of crashes"))
                try:
                    yield
                finally:
                    late.cancel()
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*(each.close(store) for each in quarantines))
                    await self.failing.close(store)
        finally:
            for paused in self.keys:
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
            key = change.key.removeprefix(self.failing.prefix)
            held = any(each.holds(key) for each in self.keys)
            self.failing.observe(key, change.after, held=held)
        elif change.key == controller_record(self.controller):
            text = None if change.after is None else change.after.value.decode(errors="replace")
            pause = None if text is None else parse_pause(text)
            self._whole.put(WHOLE, pause, notify=not change.initial)
        else:
            for each in self.keys:
                each.quarantine.observe(change)

    def _whole_changed(self, _: str, before: Pause | None, after: Pause | None, tell: bool) -> None:  # noqa: FBT001 - see `Pauses`
        self.whole, name = after, self.controller
        if after is None:
            self.running.set()
        else:
            self.running.clear()
        if tell and after is not None:
            log.warning("the controller is paused", controller=name, pause=after)
            self.event(WHOLE, EventType.NORMAL, REASON_PAUSED, f"paused {after}")
        elif tell:
            log.info("the controller is resumed", controller=name)
            message = f"resumed; it was paused {before}"
            self.event(WHOLE, EventType.NORMAL, REASON_RESUMED, message)

    def report_death(self, key: str, deaths: Deaths, *, quarantined: bool) -> None:
        fields: dict[str, Any] = {"controller": self.controller, "key": key, "deaths": deaths.count}
        if not quarantined:
            log.warning("a process died during a sync of the key", **fields)
            self.event(key, EventType.WARNING, REASON_DIED, str(deaths))
            return
        log.error(
            "a key is quarantined: it is not synced until it changes, or `natsctl resync` names it",
            **fields,
        )
        advice = "not synced until it changes, or natsctl resync names it"
        self.event(key, EventType.WARNING, REASON_QUARANTINED, f"{deaths}: {advice}")
