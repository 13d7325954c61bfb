"""Pauses one controller: its keys by annotations and records, and all of it by one record.

The bucket `natsctl` has the records, as the text of a pause (`natsctl.model.pause`):

- `controllers.NAME.paused` pauses the whole controller.
- `controllers.NAME.paused.BUCKET.KEY` pauses an object that was deleted while it was paused. The
  text `false` resumes it.
- `controllers.NAME.deaths.BUCKET.KEY` has the deaths of processes that synced only this, as JSON.
- `controllers.NAME.held.PROCESS` has the keys that a process without a disk syncs, as JSON.
- `controllers.NAME.failing.KEY` has since when and why a key fails, as JSON.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import msgspec

from natsctl.core.compare_and_set import read, rewrite
from natsctl.core.informer import Informer
from natsctl.core.pausing.claim_records import ClaimRecords
from natsctl.core.pausing.claims import ClaimedKey, ClaimedKeys, Left, current_claims
from natsctl.core.pausing.clock import Clock
from natsctl.core.pausing.failing_records import FailingRecords
from natsctl.core.pausing.pause_reports import PauseReports
from natsctl.core.pausing.paused_keys import RECHECK_S, PausedKeys
from natsctl.core.pausing.quarantine import Deaths, deaths_in, one_more
from natsctl.core.task_group import together
from natsctl.core.workqueue import WorkQueue
from natsctl.errors import NotFoundError, NotLeadingError, PermissionDeniedError, StoreError
from natsctl.model.kinds import KvKind, kv
from natsctl.model.pause import Pause, parse_pause
from natsctl.model.store import Change, Store, Stored, Stores
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

SHOWN_MAX = 5  # suspects in a log line
LISTED_S = 5.0  # how long a start waits until the records are listed
RETRY_S = 5.0  # until a record that could not be written is written again
SUSPECT_S = 0.5  # until a suspect that has to wait for other keys is looked at again

PAUSES: KvKind[bytes] = kv(bytes, bucket="natsctl", history=1, replicas=None)
"""The records of pauses."""


def controller_record(controller: str) -> str:
    """Return the key of the record that pauses a whole controller."""
    return f"controllers.{controller}.paused"


def key_record(controller: str, bucket: str, key: str) -> str:
    """Return the key of the record that pauses a deleted object."""
    return f"{controller_record(controller)}.{bucket}.{key}"


def deaths_record(controller: str, place: str, key: str) -> str:
    """Return the key of the record of the processes that died while they synced a key."""
    return f"controllers.{controller}.deaths.{place}.{key}"


class Pausing:
    """The pauses of one controller.

    `whole` is the pause of the whole controller; no worker takes a key then.
    """

    def __init__(self, controller: str) -> None:
        self.controller = controller
        self.claims = current_claims.get() or ClaimedKeys()
        self._held = ClaimRecords(controller, self.claims, self._write_soon)
        self.failing = FailingRecords(controller)
        self.whole: Pause | None = None
        self.listed = asyncio.Event()  # the records are known, or not followed
        self.listed.set()
        self._running = asyncio.Event()  # the controller is not paused
        self._running.set()
        self._record: Pause | None = None  # of the whole controller, which may have ended
        self._keys: list[PausedKeys] = []
        self._unrecorded: dict[tuple[int, str], None] = {}  # keys whose records may be wrong
        self._wake = asyncio.Event()
        self._reports: list[PauseReports] = []
        self._timer: asyncio.TimerHandle | None = None
        self._clock = Clock()
        self._store: Store | None = None  # of the records, while they are followed

    def keys(self, holds: Callable[[str], bool]) -> PausedKeys:
        """Return the paused keys of one more sync loop, which syncs the keys that it *holds*."""
        number = len(self._keys)
        paused = PausedKeys(
            lambda key: self._check_record(number, key), holds=holds, wary=self.claims.wary
        )
        paused.name = f"{self.controller}.{number}" if self.controller else ""
        self._keys.append(paused)
        for reports in self._reports:
            paused.listen(reports)
        return paused

    def report_to(self, reports: PauseReports) -> None:
        """Report every later pause and resumption, of keys and of the whole controller."""
        self._reports.append(reports)
        for paused in self._keys:
            paused.listen(reports)

    @property
    def count(self) -> int:
        """The number of paused keys that this process would sync."""
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
        """Return whether a sync of the key was held back."""
        return any(paused.is_pending(key) for paused in self._keys)

    def pauses(self) -> dict[str, Pause]:
        """Return the pauses of all paused keys."""
        return {key: pause for paused in self._keys for key, pause in paused.pauses.items()}

    async def wait_running(self) -> None:
        """Wait until the whole controller is not paused."""
        await self._running.wait()

    # ---- records

    @asynccontextmanager
    async def watching(self, stores: Stores | None) -> AsyncIterator[None]:
        """Follow and write the records in *stores* while the context lasts.

        Without stores there are no records, and only annotations pause keys.
        """
        store = None if stores is None else await self._open(stores)
        if store is None:
            with self._closing():
                yield
            return
        self._store = store
        self.listed.clear()
        self.failing.follows = not getattr(stores, "forgets", False)  # plans, replays, simulations
        informer = Informer(store, PAUSES.part(f"controllers.{self.controller}.>"))
        with self._closing():
            await informer.add(self._observe)
            async with together() as group:
                tasks = [
                    group.create_task(self._follow(informer), name="watch of pauses"),
                    group.create_task(self._list(informer), name="list of pauses"),
                    group.create_task(self._write_records(store), name="records of pauses"),
                    group.create_task(self.failing.write(store), name="records of failures"),
                ]
                try:
                    yield
                finally:
                    for task in tasks:
                        task.cancel()
                    await self._held.close(store, syncing=self.claims.busy)
                    await self.failing.close(store)

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Cancel the timers at the end of the context."""
        try:
            yield
        finally:
            for paused in self._keys:
                paused.close()
            if self._timer is not None:
                self._timer.cancel()

    async def _open(self, stores: Stores) -> Store | None:
        try:
            return await stores.open(PAUSES.part(f"controllers.{self.controller}.>"))
        except StoreError as error:
            log.warning("cannot read the pauses of controllers", error=error)
            return None

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

    async def _list(self, informer: Informer[Any]) -> None:
        """Set `listed` when the records are listed, or cannot be listed for a while."""
        try:
            async with asyncio.timeout(LISTED_S):
                await informer.cache.synced.wait()
        except TimeoutError:
            if self.listed.is_set():
                return
            log.warning(
                "cannot list the pauses in the bucket natsctl: a paused controller may sync",
                controller=self.controller,
                error=informer.failure,
            )
        self.listed.set()

    def _observe(self, change: Change[Any]) -> None:
        if change.key.startswith(f"controllers.{self.controller}.deaths."):
            self._observe_deaths(change)
            return
        if change.key.startswith(self.failing.prefix):
            self.failing.observe(change.key, change.after)
            return
        if change.key.startswith(self._held.prefix):
            self._held.observe(change.key, None if change.after is None else change.after.value)
            return
        prefix = controller_record(self.controller)
        text = None if change.after is None else change.after.value.decode(errors="replace")
        if change.key == prefix:
            self._record = None if text is None else parse_pause(text)
            self._refresh(notify=not change.initial)
            return
        bucket, _, key = change.key.removeprefix(f"{prefix}.").partition(".")
        for paused in self._keys:
            if key and paused.bucket == bucket:
                if text is None:
                    paused.unrecorded(key)
                else:
                    paused.recorded(key, parse_pause(text))

    def _observe_deaths(self, change: Change[Any]) -> None:
        _, _, place_and_key = change.key.partition(".deaths.")
        place, _, key = place_and_key.partition(".")
        for paused in self._keys:
            if paused.place == place:
                deaths = None if change.after is None else deaths_in(change.after.value)
                paused.quarantine.found(key, deaths)

    async def note_deaths(self, paused: PausedKeys, *, shared: bool) -> None:
        """Find the keys that dead processes were syncing: each of them is synced alone.

        A file has the keys of processes on this machine, and a record those of processes without a
        disk. If only one key was synced, the death counts against it, which may quarantine it.
        *shared* says whether other members of a group sync keys at the same time.
        """
        quarantine = paused.quarantine
        quarantine.check()
        if self.claims.directory is None or not paused.name:
            return
        left = self.claims.left_behind(paused.name)
        records = self._held.left_behind(paused.place, paused.holds, shared=shared)
        self._suspect(paused, [*left, *records.values()])
        if not self.claims.on_disk and (records or quarantine.suspects):
            quarantine.record_claims(asyncio.get_running_loop().time())
        counted = {
            (key, keys.process)
            for keys in (*left, *records.values())
            for key in keys.keys
            if keys.alone
        }
        for key, process in sorted(counted):
            deaths = await self._note_death(paused, key, process)
            quarantine.found(key, deaths)
            for reports in self._reports:
                reports.died(key, deaths, quarantined=key in quarantine.quarantined)
        if self._store is None:
            return
        if not self.claims.on_disk:
            await self._held.begin(self._store)
        with suppress(StoreError):  # a process that died once more does not count twice
            await self._held.remove(self._store, records, paused.place)

    def _suspect(self, paused: PausedKeys, left: Sequence[Left]) -> None:
        for keys in left:
            for key in keys.keys:
                paused.quarantine.suspect(key)
        suspects = {key for keys in left if not keys.alone for key in keys.keys}
        if suspects:
            log.warning(
                "a process died: the keys that it was syncing are synced alone, after all others",
                controller=self.controller,
                keys=", ".join(sorted(suspects)[:SHOWN_MAX]),
                count=len(suspects),
            )

    async def admit(
        self, paused: PausedKeys, key: str, claim: ClaimedKey, queue: WorkQueue[Any]
    ) -> float | None:
        """Wait until the key may be synced; return None, or after how long to ask again.

        If a process died, a suspect is synced alone and after the other keys. Without a disk, each
        key is recorded in NATS before its sync.
        """
        quarantine, alone = paused.quarantine, key in paused.quarantine.suspects
        if alone:
            now = asyncio.get_running_loop().time()
            if quarantine.must_wait(key, now, queue.waits_since):
                return SUSPECT_S
            if not await self.claims.alone(claim):
                return SUSPECT_S
        if quarantine.recording_since is not None and self._store is not None:
            await self._held.claim(self._store, (paused.place, key), alone=alone)
        if not alone:
            await self.claims.admit()
        return None

    def survived(self, paused: PausedKeys, key: str, queue: WorkQueue[Any]) -> None:
        """Note that a sync of the key has ended, and the process lives."""
        paused.quarantine.survived(key, queue.waits_since)
        self._held.release((paused.place, key))

    async def _note_death(self, paused: PausedKeys, key: str, process: str) -> Deaths:
        before = paused.quarantine.deaths.get(key)
        try:
            state = await paused.read_state(key)
        except StoreError as error:
            log.warning("cannot read the object of a death", key=key, error=error)
            return one_more(before, "" if before is None else before.state, process)
        if self._store is None:
            return one_more(before, state, process)
        noted: list[Deaths] = []

        def change(current: Stored | None) -> bytes:
            known = None if current is None else deaths_in(current.value)
            noted.append(one_more(known, state, process))
            return msgspec.json.encode(noted[-1])

        name = deaths_record(self.controller, paused.place, key)
        try:
            await rewrite(self._store, name, change, seen=await read(self._store, name))
        except StoreError as error:
            log.warning("cannot record that a process died during a sync", key=key, error=error)
            noted.append(one_more(before, state, process))
        return noted[-1]

    def quarantined(self) -> dict[str, Deaths]:
        """Return the deaths of all quarantined keys."""
        return {
            key: deaths
            for paused in self._keys
            for key, deaths in paused.quarantine.quarantined.items()
        }

    def _refresh(self, *, notify: bool = True) -> None:
        """Pause or resume the whole controller, as its record demands."""
        before, after = self.whole, self._record
        left_s = 0.0 if after is None else self._clock.left_s(after)
        if self._timer is not None:
            self._timer.cancel()
        if after is not None and left_s <= 0:
            after = None
        elif after is not None and after.until:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(left_s, RECHECK_S), self._refresh)
        self.whole = after
        if after is None:
            self._running.set()
        else:
            self._running.clear()
        if before != after and notify:
            for reports in self._reports:
                reports.whole_changed(before, after)

    def _check_record(self, number: int, key: str) -> None:
        if self._keys[number].place:
            self._unrecorded[number, key] = None
            self._wake.set()

    def _write_soon(self) -> None:
        self._wake.set()

    async def _write_records(self, store: Store) -> None:
        """Write the records of paused objects, so that their deletion does not resume them."""
        await self.listed.wait()
        while True:
            await self._wake.wait()
            self._wake.clear()
            written = await self._held.try_write(store)
            refused: list[tuple[str, StoreError]] = []
            for number, key in tuple(self._unrecorded):  # a refused one comes after all others
                del self._unrecorded[number, key]
                try:
                    await self._correct_record(store, self._keys[number], key)
                except NotLeadingError:
                    pass  # the process that holds the key writes the record
                except StoreError as error:
                    self._unrecorded[number, key] = None
                    refused.append((key, error))
            if refused:
                first_key, reason = refused[0]
                log.warning(
                    "cannot write the records of pauses yet",
                    count=len(refused),
                    key=first_key,
                    error=reason,
                )
            if refused or not written:
                await asyncio.sleep(RETRY_S)
                self._write_soon()

    async def _correct_record(self, store: Store, paused: PausedKeys, key: str) -> None:
        """Write or delete the records of a key, unless another process syncs it."""
        if not paused.holds(key):
            return
        if key in paused.quarantine.over:
            await _delete(store, deaths_record(self.controller, paused.place, key))
            paused.quarantine.over.discard(key)
        if not paused.bucket:
            return
        name = key_record(self.controller, paused.bucket, key)
        pause = paused.needs_record(key)
        if pause is not None:
            await rewrite(store, name, lambda _: pause.text.encode(), seen=await read(store, name))
        elif paused.has_superfluous_record(key):
            await _delete(store, name)


async def _delete(store: Store, name: str) -> None:
    """Delete a record, if it exists."""
    with suppress(NotFoundError):
        await store.delete(name, revision=(await store.get(name)).revision)
