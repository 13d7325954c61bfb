"""Runs one controller: its loop, its resyncs and GC cycles, and what it answers.

Seed: Kumori controllerruntime v0.0.7, whose nine type parameters are lists of slots here.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from natsctl.controller.controller import Controller, check_controller
from natsctl.controller.kube_secondary import KubeSecondary
from natsctl.controller.opened import OpenController
from natsctl.controller.owners import OwnerNames
from natsctl.controller.slots import only_primary, slots
from natsctl.core.backends import Backends
from natsctl.core.hosted import KeyedController
from natsctl.core.installation import Installation
from natsctl.core.reports import (
    Beyond,
    Measures,
    UpkeepMeasures,
    held_by,
    source_of,
    tree,
)
from natsctl.core.table import is_read
from natsctl.core.workqueue import Operation
from natsctl.core.writes import Writes
from natsctl.errors import NotFoundError, PausedError, StoreError, UnreadError, UsageError, is_delay
from natsctl.model import documents
from natsctl.model.manifests import KubeKind
from natsctl.model.plans import GarbagePlan, Removed
from natsctl.model.reports import Branch, Explanation, Status
from natsctl.model.store import Change, ManifestStores, Stores
from natsctl.slices import in_slices
from natsctl.telemetry.hiding import hidden, shown
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

STEP_S = 1.0  # between two parts of the keys of a resync
STEPS_MAX = 3600


class ControllerRuntime(KeyedController):
    """Runs one controller until it is stopped.

    Args:
        controller: the controller; its `runtime` is set to this.
        nats: the stores of kinds that are declared with `kv`, see `natsctl.connect`.
        kube: the stores of kinds that are declared with `kube`, see `natsctl.connect_kube`.
        owner_names: the labels that link secondaries to primaries.
        barrier_timeout_s: how long a key waits for the tables to show its own last writes.
        stop_timeout_s: how long syncs may go on after `stop`.

    Raises `UsageError` as `check_controller` does, and if the controller has kinds in a cluster
    and *kube* is None.
    """

    def __init__(
        self,
        controller: Controller,
        *,
        nats: Stores,
        kube: ManifestStores | None = None,
        owner_names: OwnerNames | None = None,
        barrier_timeout_s: float = 10.0,
        stop_timeout_s: float = 30.0,
    ) -> None:
        cls = type(controller)
        check_controller(controller)
        for slot in slots(cls):
            if isinstance(slot.kind, KubeKind) and kube is None:
                raise UsageError(
                    f"{cls.__name__}.{slot.name} is stored in Kubernetes, but there is no "
                    "cluster: pass kube=, see natsctl.connect_kube"
                )
        self.controller = controller
        self.name, self.version = controller.name, controller.version
        self.workers = controller.workers
        self.kind = only_primary(cls).kind.name  # as owner labels name it
        self.nats = nats
        self._owner_names = OwnerNames() if owner_names is None else owner_names
        self._writes = Writes(barrier_timeout_s)
        self._backends = Backends(nats=nats, kube=kube)
        self._opened: OpenController | None = None
        super().__init__(
            self.sync,
            start=controller.start,
            clean=controller.clean,
            stop_timeout_s=stop_timeout_s,
            retry=controller.retry,
            rate_limit=controller.rate_limit,
        )
        controller.runtime = self

    async def run(self) -> None:
        writes_kube = any(slot.role is KubeSecondary for slot in slots(type(self.controller)))
        systems = (self.nats, self._backends.kube if writes_kube else None)
        async with self._open(tuple(filter(None, systems))) as parts:
            parts.watch()
            await self.host.run(
                self._loop.run(parts, workers=self.workers, ready=self._prepare_first_sync),
                upkeep=(self._resync(), self._collect(), self._follow_bucket()),
                loops_ended=parts.garbage.evidence.close,
            )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        async with self._open(()):
            yield

    async def complete(self) -> None:
        await super().complete()
        await self._parts.garbage.begin()

    async def sync(self, key: str) -> float | None:
        """Sync the key now, outside the loop, even if it failed for good; raises its failure.

        Needs slots that are `opened` and tables that are `complete`. Raises `PausedError` if the
        key or the controller is paused, and `UsageError` while the controller runs.
        """
        self._check_idle()
        paused = self.host.pausing.advice(key, source_of(self._primary.informer.table.kind))
        if paused:
            raise PausedError(paused)
        return await self._parts.sync(key)

    def enqueue_key(self, key: str, operation: Operation) -> None:
        """Sync the key as soon as the priority of *operation* allows.

        If another process has the key, nothing happens; see `holds`. Raises `InvalidInputError` for
        an empty key.
        """
        self._loop.request(key, operation)

    def enqueue_key_after(self, key: str, operation: Operation, delay_s: float) -> None:
        """Sync the key after *delay_s* seconds, even if it's synced before; see `enqueue_key`.

        Raises `UsageError` if *delay_s* isn't a number of seconds, 0 or more.
        """
        if not is_delay(delay_s):
            raise UsageError(f"a delay is seconds, 0 or more, not {shown(delay_s)}")
        self._loop.request(key, operation, after=delay_s)

    def reason(self, key: str) -> str:
        """Return why the key is being synced, for people."""
        return self._loop.queue.reason(key).value

    def decompose_secondary(self, obj: object) -> tuple[object, str]:
        """Return the object and the key of the primary that owns it.

        Raises `NotFoundError` if it has no owner of this controller's kind and installation.
        """
        for slot in self._parts.secondaries:
            if slot.kind.describes(obj):
                owner = slot.owners.key(slot.kind, slot.kind.metadata_of(obj))
                if owner is not None:
                    return obj, owner
        raise NotFoundError(f"the object has no owner of kind {self.kind}")

    def owners(self, change: Change[Any]) -> list[str]:
        """Return the keys of the primaries that owned the object before or after the change."""
        return self._parts.owners(change)

    @property
    def replay_settings(self) -> Mapping[str, object]:
        return {
            "owner_names": msgspec.to_builtins(self._owner_names),
            "installation": msgspec.to_builtins(self.installation),
            "sync_timeout_s": self.controller.sync_timeout_s,
            "deletion_policy": self.controller.deletion_policy,
            "path": getattr(self.controller, "path", ""),
        }

    @property
    def installation(self) -> Installation | None:
        """The installation that the primaries belong to; None before the slots are open."""
        return None if self._opened is None else self._opened.installation

    async def garbage_plan(
        self, *, at_once: bool = False, orphans_max: int | None = None
    ) -> GarbagePlan:
        """Return every orphan, with the reason if none may be removed.

        *at_once* skips the grace period, for orphans that somebody has checked. If there are
        more than *orphans_max*, the others are only counted.
        """
        if self.controller.deletion_policy == "orphan":
            return GarbagePlan((), "the deletion policy keeps orphans")
        collector = self._parts.garbage
        plan = await collector.plan(at_once=at_once, orphans_max=orphans_max)
        try:
            nameless = await collector.nameless()
        except StoreError as error:
            log.warning("cannot read which objects lost their owners", error=error)
            return plan
        return msgspec.structs.replace(plan, orphans=(*plan.orphans, *nameless))

    async def garbage_apply(self, plan: GarbagePlan) -> Removed:
        """Remove exactly the objects that the plan names, because somebody asked for it.

        Each object is checked again; the result has those that were kept, with the reasons. If
        several processes share the keys, each removes what its own keys owned.
        """
        own = tuple(orphan for orphan in plan.orphans if self.holds(orphan.owner))
        return await self._parts.garbage.apply(msgspec.structs.replace(plan, orphans=own))

    async def garbage_accept(self) -> GarbagePlan:
        """Trust the bucket of primaries as it is, because somebody says so; return a new plan.

        Garbage collection is held if the bucket is not the one that was seen before, see
        `garbage_held`.
        """
        collector = self._parts.garbage
        await collector.evidence.accept()
        collector.last = await collector.plan()
        return collector.last

    @property
    def garbage_held(self) -> str:
        """Why garbage collection waits until you accept the bucket; empty if it doesn't wait."""
        return self._parts.garbage.evidence.held

    async def collect_garbage(self) -> None:
        """Run a GC cycle: sync the owners of orphans whose grace period is over, to remove them.

        Does nothing while the controller is paused, and if its deletion policy is `orphan`.
        """
        if self.controller.deletion_policy == "orphan" or self.host.pausing.whole is not None:
            return
        for owner in await self._parts.garbage.cycle():
            if self.holds(owner):
                self._loop.queue.note(owner).missing = self._primary.informer.table.incarnation
                self._loop.enqueue(owner, Operation.RESYNC)

    def explain(self, key: str) -> Explanation:
        parts = self._parts
        owned: dict[str, list[str]] = {slot.kind.name: [] for slot in parts.secondaries}
        held = []
        for slot, stored in parts.owned(key):
            owned[slot.kind.name].append(stored.key)
            if (
                is_read(stored)
                and slot.is_terminating(stored)
                and (holders := held_by(documents.parse(stored.value)))
            ):
                held.append(f"{slot.kind.name}/{stored.key} is being deleted, {holders}")
        explanation = msgspec.structs.replace(
            super().explain(key),
            owned=owned,
            held=held,
            reads=list(parts.reads.depends_on(key)),
            contested=[hidden(text) for text in parts.contests().get(key, [])],
        )
        return explanation.held_back(self.garbage_held)

    def tree(self, key: str, beyond: Beyond = lambda _: ()) -> Branch:
        owned = (
            (slot.kind, slot.informer.table.newest(stored.key) or stored)
            for slot, stored in self._parts.owned(key)
        )
        return tree(key, self._primary.informer, owned, beyond)

    def status(self) -> Status:
        contests = self._parts.contests()
        return msgspec.structs.replace(
            super().status(),
            contested={key: hidden("; ".join(texts)) for key, texts in contests.items()},
            installation=self._parts.installation.id,
            garbage_held=hidden(self.garbage_held),
        )

    def measures(self) -> Measures:
        opened, writes = self._opened, self._writes
        plan = GarbagePlan(()) if opened is None else opened.garbage.last
        upkeep = UpkeepMeasures(
            barrier_waited_s=writes.waited_s,
            barrier_timeouts=writes.timeouts,
            orphans=len(plan.orphans),
            refused=bool(plan.refused),
            undone=0 if opened is None else opened.undone,
            contested=0 if opened is None else len(opened.contests()),
        )
        return msgspec.structs.replace(super().measures(), upkeep=upkeep)

    @property
    def _parts(self) -> OpenController:
        if self._opened is None:
            raise UsageError(f"{self.name} has not opened its stores yet: run it first")
        return self._opened

    @asynccontextmanager
    async def _open(self, systems: Sequence[Stores]) -> AsyncIterator[OpenController]:
        host, nats = self.host, self.nats
        host.enter()
        parts = OpenController(
            self.controller, host, self._loop, backends=self._backends, writes=self._writes
        )
        await parts.open(nats, self._owner_names)
        self._opened = parts
        self._loop.start = parts.start
        primary = self._primary.informer
        self._loop.paused.follow((primary,))
        informers = {name: reader.informer for name, reader in parts.readers.items()}
        watching = host.watching(informers, (primary,), records=nats, systems=systems)
        async with watching, parts.reads.running():
            yield parts

    async def _prepare_first_sync(self) -> None:
        """Prepare the first sync of a term; an earlier term may have ended before that was done."""
        await self._parts.garbage.begin()
        if not self.synced.is_set():
            await self.host.begin()

    async def _resync(self) -> None:
        """Enqueue each key once per interval, spread evenly over it, so at the same time in each.

        An interval adds no more keys than there are at its start; the next one takes the others.
        """
        await self.synced.wait()
        await self.host.environment.led()
        interval_s = self.controller.resync_s
        clock, table = asyncio.get_running_loop().time, self._primary.informer.table
        deadline, oldest = clock() + interval_s, self._loop.queue.oldest_ready
        pending = oldest() is not None  # keys of the first list, which would be synced twice
        while pending and clock() < deadline:
            await asyncio.sleep(min(STEP_S, interval_s))
            since = oldest()
            pending = since is not None and clock() - since >= STEP_S
        steps = max(1, min(STEPS_MAX, int(interval_s / STEP_S)))
        start = random.random()  # noqa: S311 - other processes sync other keys at the same time
        resync, begun = partial(self._loop.enqueue, operation=Operation.RESYNC), clock()

        def cycle() -> Iterator[str]:
            """Yield all keys again and again, while there are any."""
            while table.read_keys():
                yield from table.read_keys().iterate(start)

        while True:
            keys, total, added, step = cycle(), len(table.read_keys()), 0, 0
            while step < steps:
                step = -(-steps * (added + 1) // total) if added < total else steps
                await asyncio.sleep(begun + interval_s * step / steps - clock())
                due = total * step // steps
                await in_slices(islice(keys, due - added), resync)
                added = due
            begun += interval_s

    async def _follow_bucket(self) -> None:
        await self.synced.wait()
        if self._parts.secondaries:  # without secondaries, there is nothing to prove
            await self._parts.garbage.evidence.follow(self.host.environment.led)

    async def _collect(self) -> None:
        """Run GC cycles while this process leads; a failure ends only its cycle."""
        await self.synced.wait()
        while True:
            await self.host.environment.led()
            try:
                await self.controller.garbage_secondaries()
            except UnreadError as error:
                await asyncio.sleep(error.delay_s)
                continue
            except (Exception, SystemExit):
                log.exception("a GC cycle failed", controller=self.name)
            await asyncio.sleep(self.controller.garbage.interval_s)
