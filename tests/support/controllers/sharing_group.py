"""Simulated processes that share the keys of one controller, each with its own connection."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from natsctl import Controller, ControllerRuntime, Operator, StoreError, kv
from natsctl.core.coordination.shares import FirstRun, Participation
from natsctl.daemon.operator import Runnable
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.errors import StoreTimeoutError
from natsctl.jetstream.store import LEASES
from natsctl.model.store import Deleted, Stored, WatchEvent
from natsctl.testing import MemoryStore, MemoryStores
from tests.support.eventually import eventually

SHARES = 256
TTL_S = 10.0
MEMBERS_MAX = 5

C = TypeVar("C", bound=Controller | Runnable)


class Way:
    """The connection of a process to the bucket of leases, and its faults.

    If `cut`, calls fail and the watch is silent. If `deaf`, only the watch is silent. If
    `unanswered`, writes take effect, but fail. If `late`, a write takes effect even if its caller
    is cancelled. A write takes `delay_s`, a watch event `lag_s`.
    """

    def __init__(self) -> None:
        self.heal()
        self.sending: set[asyncio.Task[Stored]] = set()

    def heal(self) -> None:
        self.cut = self.deaf = self.unanswered = self.late = False
        self.delay_s = self.lag_s = 0.0

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


class SharingMember(Generic[C]):
    """A process with one controller; its clock has the speed `rate`.

    It reaches the objects by *reached*, if given.
    """

    def __init__(
        self,
        stores: MemoryStores,
        controller: C,
        *,
        rate: float = 1.0,
        first_run: FirstRun | None = None,
        count: int = SHARES,
        reached: MemoryStores | None = None,
    ) -> None:
        self.controller = controller
        self.way, clock = Way(), asyncio.get_running_loop().time
        make = partial(
            Participation,
            lambda kind: WayStore(stores, kind, self.way),
            count=count,
            ttl_s=TTL_S,
            clock=lambda: rate * clock(),
            first_run=first_run,
        )
        settings = ControllerSettings(stop_timeout_s=1000.0)
        self.operator = Operator(
            [controller],
            nats=reached or stores,
            kube=stores.kube,
            participate=make,
            settings=settings,
        )
        self.task = asyncio.create_task(self.operator.run())
        self.leaving = False

    @property
    def part(self) -> Participation:
        (part,) = self.operator.participations.values()
        return part

    @property
    def runtime(self) -> ControllerRuntime:
        (runtime,) = self.operator.runtimes
        assert isinstance(runtime, ControllerRuntime)
        return runtime

    def holds(self, key: str) -> bool:
        return self.runtime.synced.is_set() and self.runtime.holds(key)

    def leave(self) -> None:
        self.leaving = True
        self.operator.stop()

    async def stop(self) -> None:
        """End the process; its keys move at once."""
        self.leave()
        await self.task

    async def kill(self) -> None:
        """End the process as a crash does: it writes nothing more."""
        self.leaving = self.way.cut = True
        self.task.cancel()
        await asyncio.wait((self.task,))


@asynccontextmanager
async def sharing(
    stores: MemoryStores, *controllers: C, reached: MemoryStores | None = None
) -> AsyncIterator[list[SharingMember[C]]]:
    """Run a process for each controller; begin once the keys are divided among them."""
    members = [SharingMember(stores, controller, reached=reached) for controller in controllers]

    def divided() -> bool:
        states = [member.part.state() for member in members]
        return all(len(state.members) == len(members) and not state.moving for state in states)

    await eventually(divided, within_s=6 * TTL_S)
    yield members
    for member in members:
        if not member.leaving:
            await member.stop()


class SharingGroup(Generic[C]):
    """The processes of a group; *make* makes the controller of a process.

    They share the keys in *count* shares; with one share, they elect a leader.
    """

    def __init__(self, make: Callable[[], C], *, count: int = SHARES) -> None:
        self.stores = MemoryStores()
        self.leases = self.stores.store(kv(bytes, bucket=LEASES.bucket, history=1))
        self.members: list[SharingMember[C]] = []
        self._make = make
        self._count = count

    @property
    def living(self) -> list[SharingMember[C]]:
        return [member for member in self.members if not member.leaving]

    def join(self, *, rate: float = 1.0, first_run: FirstRun | None = None) -> None:
        controller = self._make()
        self.members.append(
            SharingMember(
                self.stores, controller, rate=rate, first_run=first_run, count=self._count
            )
        )

    def check_shared(self, keys: Sequence[str]) -> None:
        """Check that the living members share the keys, and that each key has one member."""
        living = self.living
        states = [member.part.state() for member in living]
        assert all(len(state.members) == len(living) and not state.moving for state in states)
        held = [key for member in living for key in keys if member.holds(key)]
        assert sorted(held) == sorted(keys)

    async def close(self) -> None:
        for member in self.living:
            member.way.heal()
            member.leave()
        await asyncio.gather(*(m.task for m in self.members if not m.task.done()))
