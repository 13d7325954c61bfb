"""Simulates natsctl itself: processes that handle things, and the promises that must hold."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from natsctl import (
    ConflictError,
    Controller,
    DynamicWatcher,
    EventKind,
    InformerController,
    KvKind,
    ManagedController,
    ManagedReconciler,
    NotFoundError,
    ObjectIdentifier,
    Operator,
    Primary,
    Resource,
    SimpleWatcher,
    Snapshot,
    StoreError,
    kv,
    kv_kind,
    primary,
    secondary,
)
from natsctl.core.coordination.shares import participations
from natsctl.core.coordination.term import SHARES
from natsctl.jetstream.store import LEASES
from natsctl.model import documents
from natsctl.testing import MemoryStore, MemoryStores
from natsctl.testing.simulation.objects import Desired, put, remove
from natsctl.testing.simulation.world.choices import Choices
from natsctl.testing.simulation.world.faults import Faults, drawn_faults
from natsctl.testing.simulation.world.network import Network
from natsctl.testing.simulation.world.process import SimulatedProcess, current_life
from natsctl.testing.simulation.world.stores import SimulatedCluster, SimulatedStores
from tests.support.stores.sample_objects import THINGS, Thing, thing

KEYS = ("a", "b", "c")
STEPS_MAX = 7
TTL_S = 10.0
WAITS_S = (0.0, 0.001, 0.02, 0.5, 3.0)
RETRY_S = 1.0
LIMIT_S = 20_000.0  # virtual seconds until every promise about the end must hold
SIGNS = kv(Thing, bucket="signs")
CLAIMS = kv(bytes, bucket=LEASES.bucket, history=1)


class BrokenPromiseError(AssertionError):
    pass


class Ledger:
    """The external system of all processes: which state of each key was handled last."""

    def __init__(self) -> None:
        self.handled: dict[str, str | None] = {}
        self.broken: list[str] = []
        self._workers: dict[str, tuple[object, object]] = {}

    async def handle(self, key: str, text: str | None) -> None:
        """Handle a state in a few steps; no other worker may take a step for the key between."""
        worker = object()
        life = current_life.get()
        if self._workers.get(key, (None, None))[0] is life:
            self.broken.append(f"two workers of one process have {key}")
        self._workers[key] = (life, worker)
        try:
            for _ in range(2):
                await asyncio.sleep(0.003)
                if self._workers.get(key) != (life, worker):
                    self.broken.append(f"a worker took a step for {key} after another began")
            self.handled[key] = text
        finally:
            if self._workers.get(key) == (life, worker):
                del self._workers[key]


Make = Callable[[SimulatedStores, Ledger], Any]


class Idle:
    """Makes a program of a controller whose idleness nobody asks for."""

    idle = False

    def __init__(self, run: Callable[[], Any], stop: Callable[[], None]) -> None:
        self.run = run
        self.stop = stop


def text_of(stored: Thing | None) -> str | None:
    return None if stored is None else stored.spec.text


class Things(Controller):
    """Handles things, and never on a state that is older than its own last write."""

    things = primary(THINGS)
    resync_s = 1e9

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.counts: dict[str, int] = {}

    async def sync_handler(self, key: str) -> None:
        stored = self.things.get(key)
        await self.ledger.handle(key, text_of(stored))
        if stored is None:
            self.counts.pop(key, None)
            return
        count = int(str(stored.status.get("syncs", 0)))
        incarnation = stored.metadata.uid
        if count < self.counts.get(incarnation, 0):
            self.ledger.broken.append(f"{key} was synced on a state older than its own write")
        await self.things.update_status(key, {"syncs": count + 1})
        self.counts[incarnation] = count + 1


class SignedThings(Things):
    """Also hangs a sign with the text of each thing."""

    signs = secondary(SIGNS)

    async def sync_handler(self, key: str) -> None:
        await super().sync_handler(key)
        stored = self.things.get(key)
        if stored is not None:
            await self.signs.apply(key, thing(stored.spec.text))


def controller(nats: SimulatedStores, ledger: Ledger) -> Any:
    operator = Operator([Things(ledger)], nats=nats)
    return Idle(operator.run, operator.stop)


def watchers(nats: SimulatedStores, ledger: Ledger) -> Any:
    async def handle(new: Snapshot[Any]) -> None:
        await ledger.handle(new.key, text_of(THINGS.decode(new.value)))

    async def updated(_old: Snapshot[Any], new: Snapshot[Any]) -> None:
        await handle(new)

    async def deleted(last: Snapshot[Any]) -> None:
        await ledger.handle(last.key, None)

    informers = InformerController(name="things", nats=nats)
    informers.add_informer(THINGS)
    informers.add_watcher(
        SimpleWatcher(add_func=handle, update_func=updated, delete_func=deleted), THINGS
    )
    return Idle(informers.run, informers.stop)


def managed(nats: SimulatedStores, ledger: Ledger) -> Any:
    class Reconciler(ManagedReconciler[Thing]):
        def __init__(self, things: Primary[Thing]) -> None:
            super().__init__(things)
            self.things = things

        async def reconcile(self, key: str) -> float | None:
            await ledger.handle(key, text_of(self.things.get(key)))
            return None

    class Managed(ManagedController[Thing]):
        kind = THINGS

        def reconciler(self, managed: Primary[Thing]) -> ManagedReconciler[Thing]:
            return Reconciler(managed)

    running = Managed(nats=nats)
    return Idle(running.run, running.stop)


def dynamic(nats: SimulatedStores, ledger: Ledger) -> Any:
    bucket = kv_kind("things")

    async def reconcile(watcher: ObjectIdentifier) -> float | None:
        try:
            stored = await nats.store(THINGS).get(watcher.name)
        except StoreError as error:
            if "has no" not in str(error):
                raise
            await ledger.handle(watcher.name, None)
        else:
            await ledger.handle(watcher.name, text_of(THINGS.decode(stored.value)))
        return None

    running = DynamicWatcher(reconcile, nats=nats)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(running.start())
            await running.started.wait()
            for key in KEYS:
                await watch(key)

    async def watch(key: str) -> None:
        watcher = ObjectIdentifier(version="v1", kind="Job", namespace="default", name=key)
        watched = ObjectIdentifier(
            group=bucket.group, version=bucket.version, kind=bucket.kind, name=key
        )
        while True:  # if the program ended, it would miss the deletions before its next start
            with suppress(StoreError):
                await running.add_watcher(watcher, watched)
                return
            await asyncio.sleep(RETRY_S)

    return Idle(run, running.stop)


def resource(nats: SimulatedStores, ledger: Ledger) -> Any:
    things = Resource(THINGS, nats)

    async def run() -> None:
        async with things, things.events() as events, asyncio.TaskGroup() as group:
            async for event in events:
                group.create_task(handle(event))

    async def handle(event: Any) -> None:
        async with event:
            match event.kind:
                case EventKind.UPSERT:
                    await ledger.handle(event.key, text_of(event.object))
                case EventKind.DELETE:
                    await ledger.handle(event.key, None)

    return Idle(run, things.stop)


def elected(nats: SimulatedStores, ledger: Ledger) -> Any:
    loop = asyncio.get_running_loop()
    election = participations(nats.store, count=1, ttl_s=TTL_S, clock=loop.time)
    operator = Operator([Things(ledger)], nats=nats, participate=election)
    return Idle(operator.run, operator.stop)


def sharded(nats: SimulatedStores, ledger: Ledger) -> Any:
    loop = asyncio.get_running_loop()
    shard = participations(nats.store, count=SHARES, ttl_s=TTL_S, clock=loop.time)
    operator = Operator([SignedThings(ledger)], nats=nats, participate=shard)
    return Idle(operator.run, operator.stop)


class Group(msgspec.Struct, frozen=True):
    """Processes of one program, which may hang signs."""

    make: Make
    processes: int = 1
    signs: bool = False


GROUPS = {
    "controller": Group(controller),
    "watchers": Group(watchers),
    "managed": Group(managed),
    "dynamic": Group(dynamic),
    "resource": Group(resource),
    "election": Group(elected, processes=2),
    "sharding": Group(sharded, processes=2, signs=True),
}


async def check(group: Group, seed: int, faults: Faults | None = None) -> None:
    """Run one schedule; raises `BrokenPromiseError`."""
    choices = Choices(seed)
    drawn = drawn_faults(choices) if faults is None else faults
    stores, ledger = MemoryStores(), Ledger()
    network = Network(choices, drawn)
    processes = [
        SimulatedProcess(f"p{number}", _made(group.make, ledger), network, stores, seed=seed)
        for number in range(group.processes)
    ]
    running = [asyncio.create_task(process.run()) for process in processes]
    try:
        await _script(choices, stores, signs=group.signs)
        drawn.over = True
        await _promised(stores, ledger, network, signs=group.signs)
    finally:
        drawn.over = True
        for process in processes:
            process.stop()
        await asyncio.gather(*running)


def _made(make: Make, ledger: Ledger) -> Any:
    def program(nats: SimulatedStores, _kube: SimulatedCluster) -> Any:
        return make(nats, ledger)

    return program


async def _script(choices: Choices, stores: MemoryStores, *, signs: bool) -> None:
    for number in range(3 + choices.below("steps", STEPS_MAX)):
        key = choices.pick(f"step/{number}/key", KEYS)
        if choices.share(f"step/{number}") < 0.25:
            await remove(stores, THINGS, key)
        else:
            text = choices.pick(f"step/{number}/text", ("one", "two", f"text {number}"))
            await put(stores, Desired(THINGS, key, {"spec": {"text": text}}))
        if signs:
            await _tamper(choices, stores.store(SIGNS), f"step/{number}/sign")
        await asyncio.sleep(choices.pick(f"step/{number}/wait", WAITS_S))


async def _tamper(choices: Choices, signs: MemoryStore, draw: str) -> None:
    """Delete a sign, or change its text, as another client does; a sync may be faster."""
    share, hung = choices.share(draw), signs.stored()
    if not hung or share > 0.5:
        return
    sign = hung[choices.below(f"{draw}/key", len(hung))]
    changed = documents.merge_patch(documents.parse(sign.value), {"spec": {"text": "changed"}})
    with suppress(ConflictError, NotFoundError):
        if share < 0.25:
            await signs.delete(sign.key)
        else:
            await signs.update(sign.key, documents.render(changed), revision=sign.revision)


async def _promised(stores: MemoryStores, ledger: Ledger, network: Network, *, signs: bool) -> None:
    """Wait until the last state of every key was handled, and check the other promises."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    crashed = any("crash" in fault.fault.value for fault in network.faults.happened)
    while missing := [
        *_missing(stores, ledger, deletions=not crashed),
        *(_wrong_signs(stores) if signs else ()),
    ]:
        if ledger.broken or clock() - begun > LIMIT_S:
            break
        await asyncio.sleep(0.05 + (clock() - begun) / 4)
    if missing or ledger.broken:
        happened = "; ".join(map(str, network.faults.happened))
        raise BrokenPromiseError("; ".join((*ledger.broken, *missing, "faults: " + happened)))


def _missing(stores: MemoryStores, ledger: Ledger, *, deletions: bool) -> list[str]:
    wanted = _texts(stores, THINGS)
    lost = [
        f"{key}: {text!r} is stored, {ledger.handled.get(key)!r} was handled last"
        for key, text in wanted.items()
        if ledger.handled.get(key) != text
    ]
    if deletions:
        lost += [
            f"the deletion of {key} was not handled"
            for key, text in ledger.handled.items()
            if text is not None and key not in wanted
        ]
    return lost


def _wrong_signs(stores: MemoryStores) -> list[str]:
    wanted, hung = _texts(stores, THINGS), _texts(stores, SIGNS)
    return [
        f"the sign of {key} has the text {hung.get(key)!r} instead of {wanted.get(key)!r}"
        for key in sorted({*wanted, *hung})
        if hung.get(key) != wanted.get(key)
    ]


def _texts(stores: MemoryStores, kind: KvKind[Thing]) -> dict[str, str | None]:
    return {
        stored.key: text_of(kind.decode(stored.value)) for stored in stores.store(kind).stored()
    }
