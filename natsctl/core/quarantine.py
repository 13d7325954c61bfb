"""Finds the keys whose syncs kill their process, and keeps them from being synced.

Each worker notes which key it syncs where the note outlives the process: in a file that is mapped
into memory, which costs no system call, because the kernel keeps the pages of a process that dies.
A lock on the file shows that its process lives. A process that can't write files has a record in
the bucket `natsctl`, `controllers.NAME.held.LOOP.PROCESS`, from its first sync to an orderly stop.
Such a record shows that its process died, but at first not with which keys, so the next process
adds each key to its own record before it syncs the key, until one pass over all keys has ended
well.

The keys that a dead process was syncing are *suspects*. Each is synced alone, after all keys that
were waiting before it. Only the death of a process that synced a single key counts against that key
(`controllers.NAME.deaths.PLACE.KEY`), so the key that kills is found, and no other key is
quarantined with it.
"""

import asyncio
import fcntl
import mmap
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from natsctl.core.compare_and_set import read, rewrite
from natsctl.core.informer import Informer
from natsctl.core.table import is_read
from natsctl.core.workqueue import WorkQueue
from natsctl.errors import DECODE_ERRORS, NotFoundError, NotLeadingError, StoreError
from natsctl.model.bookkeeping import DEATHS_MAX, Deaths, claim_record, deaths_in, deaths_record
from natsctl.model.kinds import KvKind
from natsctl.model.store import Change, Store, Stored
from natsctl.model.times import time_text
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

SHOWN_MAX = 5  # suspects in a log line
RETRY_S = 5.0  # until a record that could not be written is written again
SUSPECT_S = 0.5  # until a suspect that has to wait for other keys is looked at again
CLOSE_S = 1.0  # how long a stop waits until the record is deleted
SLOT = 512  # bytes for the key of one worker; the first two are its length
LENGTH = 2
ENDING = ".held"
SEEN = ".seen"  # of a file whose keys were read, while other files of its process were not
ALONE_WITHIN_S = 5.0  # how long all other workers wait at a stretch, so that a key is alone
AGAIN_S = 15.0  # how long they then sync on, if the key wasn't alone within that time

_LENGTHS = [size.to_bytes(LENGTH, "little") for size in range(SLOT)]


class Left(msgspec.Struct, frozen=True):
    """The keys of one sync loop that a dead process was syncing, and whether it was one alone."""

    process: str
    keys: tuple[str, ...]
    alone: bool


class ClaimedKeys:
    """The keys that all sync loops of this process are syncing, one place for each worker.

    Without a *directory*, nothing is noted, and no key is a suspect.

    `wary` has whatever makes a worker ask before a sync: loops with suspects, and a key that is
    alone now. It's empty as long as no process has died.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.process = f"{os.getpid()}-{os.urandom(8).hex()}"  # unique among all machines
        self.directory = directory
        self.wary: set[object] = set()
        self.on_disk = directory is not None
        self._claims: set[ClaimedKey] = set()
        self._alone: ClaimedKey | None = None
        self._not_before = 0.0  # the loop time at which a key may be alone again
        self._changed = asyncio.Event()

    @contextmanager
    def of_loop(self, name: str, workers: int) -> Iterator[list["ClaimedKey"]]:
        """Yield a claim for each worker of the sync loop *name*, or none without a directory.

        The file is deleted at the end of the context.
        """
        if self.directory is None or not name:
            yield []
            return
        path, file = self.directory / f"{name}.{self.process}{ENDING}", None
        if self.on_disk:
            try:
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                file = _created(path, workers * SLOT)
            except OSError as error:
                log.info("cannot write the state directory: claims are noted in NATS", error=error)
                self.on_disk = False
        mapped = mmap.mmap(-1 if file is None else file.fileno(), workers * SLOT)
        claims = [ClaimedKey(self, mapped, worker * SLOT) for worker in range(workers)]
        self._claims.update(claims)
        try:
            yield claims
        finally:
            for claim in claims:
                claim.release()
            self._claims.difference_update(claims)
            if file is not None:
                path.unlink(missing_ok=True)
                file.close()

    def left_behind(self, name: str) -> list[Left]:
        """Return what dead processes left of the sync loop *name*, once: their files are deleted.

        Whether a key was alone depends on all files of its process. So a file stays until those of
        other loops are read, which may belong to other controllers.
        """
        found: list[Left] = []
        if self.directory is None:
            return found
        for path in sorted(self.directory.glob(f"{name}.*-*{ENDING}")):
            with suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while the process lives
                if not os.fstat(file.fileno()).st_nlink:
                    continue
                process = path.name.removeprefix(f"{name}.").removesuffix(ENDING)
                files = [*self.directory.glob(f"*.{process}{ENDING}")]
                files += self.directory.glob(f"*.{process}{SEEN}")
                count = sum(len(_keys_in(other.read_bytes())) for other in files)
                if keys := _keys_in(file.read()):
                    found.append(Left(process, keys, alone=count == 1))
                if all(other == path or other.suffix == SEEN for other in files):
                    for other in files:
                        other.unlink(missing_ok=True)
                else:
                    path.rename(path.with_suffix(SEEN))
        return found

    @property
    def busy(self) -> bool:
        return any(claim.busy for claim in self._claims)

    @property
    def has_alone(self) -> bool:
        """Whether a key is synced alone, or waits for the others to end."""
        return self._alone is not None

    async def admit(self) -> None:
        while self._alone is not None:
            await self._next_change()

    async def alone(self, claim: "ClaimedKey") -> bool:
        """Wait until no other key is synced, and let none begin until the claim is released.

        Returns False if another key has to be alone, or if the others take too long: try again
        later, so that a sync that takes long doesn't hold up all keys.
        """
        now = asyncio.get_running_loop().time()
        if self._alone is not None or now < self._not_before:
            return False
        self._alone = claim
        self.wary.add(self)
        try:
            async with asyncio.timeout(ALONE_WITHIN_S):
                while self.busy:
                    await self._next_change()
        except BaseException as error:
            self.ended(claim)
            if isinstance(error, TimeoutError):
                self._not_before = now + ALONE_WITHIN_S + AGAIN_S
                return False
            raise
        return True

    def ended(self, claim: "ClaimedKey") -> None:
        if claim is self._alone:
            self._alone = None
            self.wary.discard(self)
        self._changed.set()

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class ClaimedKey:
    """The place for the key that one worker syncs."""

    def __init__(self, claims: ClaimedKeys, mapped: mmap.mmap, start: int) -> None:
        self._claims, self._wary = claims, claims.wary
        self._mapped, self._start, self._key = mapped, start, start + LENGTH
        self._free = slice(start, self._key)

    @property
    def busy(self) -> bool:
        return self._mapped[self._free] != _LENGTHS[0]

    def hold(self, key: str) -> None:
        data = key.encode()[: SLOT - LENGTH]
        size = len(data)
        self._mapped[self._start : self._key + size] = _LENGTHS[size] + data

    def release(self) -> None:
        self._mapped[self._free] = _LENGTHS[0]
        if self._wary:
            self._claims.ended(self)


def _created(path: Path, size: int) -> BinaryIO:
    """Create and lock a file, which gets its name last, so that it never seems to be dead.

    A write to a mapped page without a block on the disk would kill the process, so the file has all
    its blocks from the beginning.
    """
    hidden = path.with_suffix(".new")
    try:
        hidden.write_bytes(bytes(size))
        file = hidden.open("r+b")
        fcntl.flock(file, fcntl.LOCK_EX)
        hidden.rename(path)
    except OSError:
        with suppress(OSError):
            hidden.unlink(missing_ok=True)
        raise
    return file


def _keys_in(data: bytes) -> tuple[str, ...]:
    keys = list[str]()
    for start in range(0, len(data) - SLOT + 1, SLOT):
        length = int.from_bytes(data[start : start + LENGTH], "little")
        if 0 < length <= SLOT - LENGTH:
            with suppress(UnicodeDecodeError):
                keys.append(data[start + LENGTH : start + LENGTH + length].decode())
    return tuple(keys)


class ClaimRecord(msgspec.Struct, frozen=True):
    """The keys that a process syncs, on which host, and whether it syncs one key alone."""

    keys: tuple[str, ...] = ()
    host: str = ""
    alone: bool = False


class Quarantine:
    """The suspects and the quarantined keys of one sync loop, which syncs the keys that it *holds*.

    A key with three deaths in its present desired state is quarantined, and others with deaths are
    suspects too. *report* is called with each key that a process died with, its deaths, and whether
    it is quarantined. Without a *controller*, and without a directory, there are no suspects. The
    *number* is that of the loop in its controller.
    """

    def __init__(
        self,
        controller: str,
        number: int,
        claims: ClaimedKeys,
        queue: WorkQueue[Any],
        *,
        holds: Callable[[str], bool],
        report: Callable[..., None],
    ) -> None:
        self.name = f"{controller}.{number}" if controller else ""  # unique on this machine
        self.deaths: dict[str, Deaths] = {}  # as recorded, of all processes of the controller
        self.suspects: dict[str, float | None] = {}  # and the loop time at which each came up first
        self._controller, self._claims, self._queue = controller, claims, queue
        self._holds, self._report = holds, report
        self._informers: Sequence[Informer[Any]] = ()
        self._recording_since: float | None = None  # each claim is recorded before its sync
        self.store: Store | None = None  # of the records; without it, nothing is recorded
        self._place = ""  # the bucket or the kind of the objects, in the names of records
        self._prefix = claim_record(controller, number, "")
        self._host = socket.gethostname()
        self._others: dict[str, tuple[ClaimRecord, int]] = {}  # by process, with their revisions
        self._claimed: dict[str, bool] = {}  # what its record has to show, and whether it's alone
        self._begun = False
        self._written: Stored | None = None  # the record of this process, as it was written last
        self._over: set[str] = set()  # keys whose deaths have to be deleted
        self._changed = asyncio.Event()  # something has to be written
        self._writing = asyncio.Lock()

    def follow(self, informers: Sequence[Informer[Any]]) -> None:
        self._informers = informers
        kinds = [informer.table.kind for informer in informers]
        buckets = (kind.bucket for kind in kinds if isinstance(kind, KvKind))
        first = "".join(kind.name.replace(".", "_") for kind in kinds[:1])
        self._place = next(buckets, "") or first

    # ---- the decision

    def of(self, key: str) -> Deaths | None:
        """Return the deaths of a quarantined key; None if the key may be synced."""
        deaths = self.deaths.get(key)
        quarantined = deaths and deaths.count >= DEATHS_MAX and deaths.state == self._state(key)
        return deaths if quarantined else None

    @property
    def quarantined(self) -> dict[str, Deaths]:
        return {key: deaths for key in self.deaths if (deaths := self.of(key)) is not None}

    async def admit(self, key: str, claim: ClaimedKey) -> float | None:
        """Wait until the key may be synced; return None, or after how long to ask again.

        If a process died, a suspect is synced alone and after the other keys. Without a disk, each
        key is recorded in NATS before its sync, which begins all the same if that fails: nothing
        else would ever be synced.
        """
        alone = key in self.suspects or key in self.deaths
        if alone:
            since = self.suspects.get(key)
            if since is None:
                since = self.suspects[key] = self._queue.now()
            if self._queue.waits_since(since) or not await self._claims.alone(claim):
                return SUSPECT_S
        while True:
            if not alone:
                await self._claims.admit()
            if self._recording_since is None or self.store is None:
                return None
            self._claimed[key] = alone
            await self._write_claims(self.store)
            if alone or not self._claims.has_alone:
                return None
            self.ended(key)  # another key is alone by now: it would not count a death

    def survived(self, key: str) -> None:
        """Note that a sync of the key has ended, and the process lives.

        Claims are recorded until one pass over all keys has ended well.
        """
        self.release(key)
        self.suspects.pop(key, None)
        since = self._recording_since
        if since is not None and not self.suspects and not self._queue.waits_since(since):
            self._recording_since = None
        self.ended(key)
        self._look()

    def ended(self, key: str) -> None:
        """Take the key out of the record of this process, whether its sync has begun or not."""
        if key in self._claimed:
            del self._claimed[key]
            self._changed.set()

    def release(self, key: str) -> None:
        """Forget the deaths, because a person requested a sync. The key stays a suspect."""
        if self.deaths.pop(key, None) is not None:
            self.suspects.setdefault(key, None)
            self._over.add(key)
            self._changed.set()

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Forget the suspects that another process syncs by now: this one never will."""
        for key in [key for key in self.suspects if not wanted(key)]:
            del self.suspects[key]
        self._look()

    def _look(self) -> None:
        """Let the workers ask before each sync, or not any more."""
        unsure = self.suspects or self.deaths or self._claimed
        if unsure or self._recording_since is not None:
            self._claims.wary.add(self)
        else:
            self._claims.wary.discard(self)

    def _state(self, key: str) -> str | None:
        """Return a digest of the desired state of the object; empty if it does not exist.

        Returns None if this process does not keep the object's value.
        """
        for informer in self._informers:
            stored = informer.table.newest(key)
            if stored is not None:
                return informer.table.kind.digest(stored.value) if is_read(stored) else None
        return ""

    # ---- what dead processes left

    async def find(self, *, shared: bool) -> None:
        """Find the keys that dead processes were syncing, and count the deaths of single keys.

        A file has the keys of processes on this machine, and a record those of processes without a
        disk. *shared* says whether other members of a group sync keys at the same time.
        """
        self._changed.set()  # the records of keys that this process holds now
        if self._claims.directory is None or not self.name:
            return
        recorded = self._recorded(shared=shared)
        found = [*self._claims.left_behind(self.name), *recorded]
        for key in {key for left in found for key in left.keys}:
            self.suspects.setdefault(key, None)  # before a wait in which a change asks for a sync
        together = {key for left in found if not left.alone for key in left.keys}
        if together:
            log.warning(
                "a process died: the keys that it was syncing are synced alone, after all others",
                controller=self._controller,
                keys=", ".join(sorted(together)[:SHOWN_MAX]),
                count=len(together),
            )
        unsure = found or self.suspects or len(self.quarantined) < len(self.deaths)
        if not self._claims.on_disk and unsure and self._recording_since is None:
            self._recording_since = self._queue.now()
        self._look()
        for left in found:
            for key in left.keys if left.alone else ():
                deaths = await self._note_death(key, left.process)
                self._found(key, deaths)
                self._report(key, deaths, quarantined=self.of(key) is not None)
        if self.store is not None:
            if not self._claims.on_disk:
                self._begun = True
                await self._write_claims(self.store)
            for left in recorded:
                await self._remove(self.store, left)

    def _recorded(self, *, shared: bool) -> list[Left]:
        """Return the keys in other processes' records that this process holds now.

        Members of a group that are alive have records too. So if the keys are *shared*, only those
        with such keys count, and those of this host: only one process without a disk runs there.
        """
        recorded = []
        for process, (record, _) in self._others.items():
            keys = tuple(filter(self._holds, record.keys))
            if keys or not shared or record.host == self._host:
                alone = record.alone and len(record.keys) == 1
                recorded.append(Left(process, keys, alone=alone))
        return recorded

    def _found(self, key: str, deaths: Deaths | None) -> None:
        """Note the record of a key's deaths, or that it has none."""
        self._over.discard(key)
        if deaths is not None:
            self.deaths[key] = deaths
        elif self.deaths.pop(key, None) is None:
            return
        if deaths is None or self.of(key) is not None:  # survived elsewhere, or not synced any more
            self.suspects.pop(key, None)
        self._look()

    async def _note_death(self, key: str, process: str) -> Deaths:
        """Record one more death; a state whose value is not kept is read from its store."""
        known, state = self.deaths.get(key), self._state(key)
        noted: Deaths | None = None

        def one_more(known: Deaths | None) -> Deaths:
            """Return the deaths with this one, unless they have it; others' states don't count."""
            if known is None or known.state != state:
                known = Deaths(count=0, last="", state=state or "")
            if process in known.processes:
                return known
            processes = (*known.processes, process)[-DEATHS_MAX:]
            last = time_text(datetime.now(UTC))
            return Deaths(count=known.count + 1, last=last, state=known.state, processes=processes)

        def change(current: Stored | None) -> bytes:
            nonlocal noted
            noted = one_more(None if current is None else deaths_in(current.value))
            return msgspec.json.encode(noted)

        try:
            for informer in self._informers:
                if state is None and key in informer.table:
                    stored = await read(informer.store, key)
                    state = "" if stored is None else informer.table.kind.digest(stored.value)
            if self.store is not None:
                name = deaths_record(self._controller, self._place, key)
                await rewrite(self.store, name, change)
        except StoreError as error:
            log.warning("cannot record that a process died in a sync", key=key, error=error)
            noted = None
            state = known.state if state is None and known is not None else state
        return noted or one_more(known)

    # ---- records in NATS

    def observe(self, change: Change[Any]) -> None:
        """Note a record as the watch shows it."""
        name, after = change.key, change.after
        if name.startswith(deaths := deaths_record(self._controller, self._place, "")):
            found = None if after is None else deaths_in(after.value)
            self._found(name.removeprefix(deaths), found)
        elif name.startswith(self._prefix):
            process = name.removeprefix(self._prefix)
            self._others.pop(process, None)
            if after is not None and process != self._claims.process:
                record = ClaimRecord()
                with suppress(*DECODE_ERRORS):
                    record = msgspec.json.decode(after.value, type=ClaimRecord)
                self._others[process] = record, after.revision

    async def _remove(self, store: Store, left: Left) -> None:
        """Remove what was found from the record of a dead process.

        A process that died once more doesn't count twice, so a failure doesn't matter.
        """
        record, revision = self._others.get(left.process, (ClaimRecord(), 0))
        name, rest = f"{self._prefix}{left.process}", tuple(set(record.keys).difference(left.keys))
        with suppress(StoreError):  # if the process has changed it, it lives
            if rest:
                record = msgspec.structs.replace(record, keys=rest, alone=False)
                await store.update(name, msgspec.json.encode(record), revision=revision)
            elif revision:
                await store.delete(name, revision=revision)

    async def write(self, store: Store, listed: asyncio.Event) -> None:
        """Write the record of this process, and delete the deaths of keys that were survived."""
        await listed.wait()
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not (await self._write_claims(store) and await self._delete_deaths(store)):
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def _delete_deaths(self, store: Store) -> bool:
        """Delete the records of keys that this process holds; return whether all are deleted."""
        written = True
        for key in list(filter(self._holds, self._over)):
            name = deaths_record(self._controller, self._place, key)
            try:
                with suppress(NotFoundError):
                    await store.delete(name, revision=(await store.get(name)).revision)
                self._over.discard(key)
            except NotLeadingError:
                continue  # the process that holds the key deletes the record
            except StoreError as error:
                written = False
                log.warning("cannot delete the record of deaths yet", key=key, error=error)
        return written

    async def _write_claims(self, store: Store) -> bool:
        """Write the record of this process, if it has changed.

        Returns False after a failure, which is logged: the caller tries again later.
        """
        if not self._begun:
            return True
        async with self._writing:  # the claims of several workers are one write
            alone = list(self._claimed.values()) == [True]
            record = ClaimRecord(tuple(self._claimed), self._host, alone)
            value, name = msgspec.json.encode(record), f"{self._prefix}{self._claims.process}"
            try:
                written = await rewrite(store, name, lambda _: value, seen=self._written)
            except NotLeadingError:
                return True  # the next change writes the record
            except StoreError as error:
                self._written = None
                log.warning("cannot record the keys that are synced", error=error)
                return False
            self._written = written.stored
            return True

    async def close(self, store: Store) -> None:
        """Delete the record of this process, so that the next process finds no death.

        It stays if the process is still syncing a key, which can't be stopped.
        """
        if self._begun and not self._claims.busy:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await store.delete(f"{self._prefix}{self._claims.process}")
