"""Simulated processes that share the keys of a controller, each with its own connection."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from natsctl import Controller, NotFoundError, Object, Operator, StoreError, kv, primary
from natsctl.core.coordination.shares import FirstRun, Participation, always_first, participations
from natsctl.core.coordination.term import SHARES
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.errors import StoreTimeoutError
from natsctl.jetstream.store import LEASES
from natsctl.model.store import Deleted, Stored, WatchEvent
from natsctl.testing import MemoryStore, MemoryStores

TTL_S = 10.0
ALL = kv(bytes, bucket=LEASES.bucket, history=1)


class Item(Object, frozen=True):
    pass


class Way:
    """The connection of a process to the bucket of leases, and its faults.

    If `cut`, calls fail and the watch is silent. If `deaf`, only the watch is silent. If
    `unanswered`, writes take effect, but fail. If `late`, a write takes effect even if its caller
    is cancelled. A write takes `delay_s`, a watch event `lag_s`.
    """

    def __init__(self) -> None:
        self.cut = self.deaf = self.unanswered = self.late = False
        self.delay_s = self.lag_s = 0.0
        self.sending: set[asyncio.Task[Stored]] = set()

    def check(self) -> None:
        if self.cut:
            raise StoreError("the connection is cut")

    async def written(self) -> None:
        if self.unanswered:
            raise StoreTimeoutError("no response")
        self.check()


class WayStore(MemoryStore):
    """A store that is reached over a connection with faults."""

    def __init__(self, stores: MemoryStores, kind: Any, way: Way) -> None:
        self.kind = kind
        self._store = stores.store(kind)
        self._way = way

    async def get(self, key: str) -> Stored:
        self._way.check()
        return await self._store.get(key)

    async def create(self, key: str, value: bytes) -> Stored:
        return await self._sent(lambda: self._store.create(key, value))

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        return await self._sent(lambda: self._store.update(key, value, revision=revision))

    async def delete(
        self, key: str, *, revision: int | None = None, uid: str = "", purge: bool = False
    ) -> int:
        self._way.check()
        return await self._store.delete(key, revision=revision, uid=uid, purge=purge)

    async def history(self, key: str) -> list[Stored | Deleted]:
        return await self._store.history(key)

    async def last_revision(self) -> int:
        return await self._store.last_revision()

    async def newest_revision(self) -> int:
        return await self._store.newest_revision()

    @asynccontextmanager
    async def watch(
        self, shown: Collection[str] | None = None
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        self._way.check()
        async with self._store.watch(shown) as events:
            yield self._heard(events)

    async def _heard(self, events: AsyncIterator[WatchEvent]) -> AsyncIterator[WatchEvent]:
        async for event in events:
            while self._way.deaf or self._way.cut:  # noqa: ASYNC110 - no event exists for it
                await asyncio.sleep(0.05)
            if self._way.lag_s:
                await asyncio.sleep(self._way.lag_s)
            yield event

    async def _sent(self, write: Callable[[], Awaitable[Stored]]) -> Stored:
        """Write, and fail if `unanswered`; a `late` write continues if its caller is cancelled."""
        way = self._way

        async def arrive() -> Stored:
            way.check()
            await asyncio.sleep(way.delay_s)
            return await write()

        task = asyncio.create_task(arrive())
        if way.late:
            way.sending.add(task)
            task.add_done_callback(way.sending.discard)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            stored = await (asyncio.shield(task) if way.late else task)
        finally:
            if not way.late:
                task.cancel()
        await way.written()
        return stored


class Floor:
    """A log of the syncs of all processes, and of the syncs that overlap."""

    def __init__(self) -> None:
        self.at: dict[str, str] = {}
        self.visits: list[tuple[str, str]] = []
        self.overlaps: list[str] = []

    def workers(self, since: int = 0) -> dict[str, set[str]]:
        """Return the processes that synced each key, without the first `since` syncs."""
        workers: dict[str, set[str]] = {}
        for member, key in self.visits[since:]:
            workers.setdefault(key, set()).add(member)
        return workers


class Items(Controller):
    """Syncs every key slowly and repeatedly, and logs overlapping syncs of a key.

    A sync raises the `failure` if there is one.
    """

    name = "items"
    items = primary(kv(Item, bucket="items"))
    resync_s = 1e6
    workers = 10

    def __init__(self, member: str, floor: Floor, *, pause_s: float, again_s: float | None) -> None:
        self.who, self.floor = member, floor
        self.pause_s, self.again_s = pause_s, again_s
        self.failure: Exception | None = None
        self.counts: Counter[str] = Counter()

    async def sync_handler(self, key: str) -> float | None:
        other_member = self.floor.at.get(key)
        if other_member is not None:
            self.floor.overlaps.append(f"{self.who} begins {key} while {other_member} syncs it")
        self.floor.at[key] = self.who
        self.counts[key] += 1
        self.floor.visits.append((self.who, key))
        try:
            await asyncio.sleep(self.pause_s)
        finally:
            if self.floor.at.get(key) == self.who:
                del self.floor.at[key]
        if self.failure is not None:
            raise self.failure
        return self.again_s if self.items.get(key) is not None else None


class Member:
    """A simulated process of the group."""

    def __init__(
        self,
        member: str,
        town: "Town",
        *,
        pause_s: float,
        again_s: float | None,
        rate: float = 1.0,
        first_run: FirstRun = always_first,
    ) -> None:
        self.who = member
        loop = asyncio.get_running_loop()
        self.leaving = False
        self.way = Way()
        self._town, stores = town, town.stores
        self.controller = Items(member, town.floor, pause_s=pause_s, again_s=again_s)
        make = participations(
            lambda kind: WayStore(stores, kind, self.way),
            count=SHARES,
            ttl_s=TTL_S,
            clock=lambda: rate * loop.time(),
            first_run=first_run,
            identity=f"{member}-{len(town.members)}",
        )
        settings = ControllerSettings(stop_timeout_s=1000.0)
        self.operator = Operator(
            [self.controller], nats=stores, participate=make, settings=settings
        )
        self.task = asyncio.create_task(self.operator.run())

    @property
    def shard(self) -> Participation:
        return self.operator.participations["items"]

    @property
    def members(self) -> int:
        """The number of members that share the keys; 0 while shares move."""
        state = self.shard.state()
        return 0 if state.moving else len(state.members)

    @property
    def keys(self) -> set[str]:
        """The existing keys that this process may sync now."""
        runtime = self.controller.runtime
        existing = self._town.items.keys() if runtime.synced.is_set() else []
        return {key for key in existing if runtime.holds(key)}

    def leave(self) -> None:
        self.leaving = True
        self.operator.stop()

    async def stop(self) -> None:
        self.leave()
        await self.task

    async def kill(self) -> None:
        """End the process as a crash does: it writes nothing more."""
        self.way.cut = True
        self.task.cancel()
        await asyncio.wait((self.task,))


class Town:
    """A group of processes, their stores and the log of their syncs."""

    def __init__(self, stores: MemoryStores | None = None) -> None:
        self.stores = stores or MemoryStores()
        self.floor = Floor()
        self.items = self.stores.store(Items.items.kind)
        self.leases = self.stores.store(ALL)
        self.members: list[Member] = []

    async def put(self, *keys: str) -> None:
        for key in keys:
            await self.items.create(key, b'{"spec": {}}')

    async def touch(self, key: str, text: str) -> None:
        value = msgspec.json.encode({"spec": {"text": text}})
        try:
            revision = (await self.items.get(key)).revision
        except NotFoundError:
            await self.items.create(key, value)
        else:
            await self.items.update(key, value, revision=revision)

    def join(
        self,
        name: str,
        *,
        pause_s: float = 0.5,
        again_s: float | None = 0.5,
        rate: float = 1.0,
        first_run: FirstRun = always_first,
    ) -> Member:
        """Start another process; its clock has the speed `rate`."""
        member = Member(
            name, self, pause_s=pause_s, again_s=again_s, rate=rate, first_run=first_run
        )
        self.members.append(member)
        return member

    def shared(self, *members: Member) -> bool:
        """Return whether these members, and no others, hold all keys, each key once."""
        if not all(member.members == len(members) for member in members):
            return False
        held = [key for member in members for key in member.keys]
        all_keys = set(self.items.keys())
        return len(held) == len(all_keys) and set(held) == all_keys

    def check(self) -> None:
        assert self.floor.overlaps == []

    async def close(self) -> None:
        for member in self.members:
            if not member.task.done():
                member.way.cut = member.way.deaf = member.way.unanswered = False
                await member.stop()
