"""Collects garbage: in GC cycles, which sync the owners of orphans, or at a person's command.

If several processes share the keys, each process removes the orphans of the keys that it holds.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from natsctl.controller.garbage.collector import GarbageCollector
from natsctl.controller.sync.events import SyncReports
from natsctl.controller.sync.sync_run import DeletionPolicy, SyncRuns
from natsctl.core.coordination.term import led
from natsctl.core.loop import KeyQueue
from natsctl.core.workqueue import Operation
from natsctl.errors import StoreError, UnreadError
from natsctl.model.garbage import GarbagePlan, Removed
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

SAVE_S = 2.0  # how long a stop waits until the state of the bucket is stored


class GarbageCycles(msgspec.Struct, eq=False):
    """Collects the garbage of one controller; `last` is the plan of the last GC cycle.

    The policy `orphan` keeps the objects of deleted primaries.
    """

    collector: GarbageCollector
    runs: SyncRuns
    reports: SyncReports
    keys: KeyQueue
    policy: DeletionPolicy
    last: GarbagePlan = GarbagePlan(())

    async def plan(self, *, at_once: bool = False, orphans_max: int | None = None) -> GarbagePlan:
        """Return the plan of the next GC cycle, and the objects that name no owner, for a person.

        See `GarbageCollector.plan`. The plan is empty if the deletion policy is `orphan`.
        """
        if self.policy == "orphan":
            return GarbagePlan((), "the deletion policy keeps orphans")
        plan = await self.collector.plan(at_once=at_once, orphans_max=orphans_max)
        try:
            nameless = await self.collector.nameless()
        except StoreError as error:
            log.warning("cannot read which objects lost their owners", error=error)
            return plan
        return msgspec.structs.replace(plan, orphans=(*plan.orphans, *nameless))

    async def start(self) -> None:
        """See `GarbageCollector.begin`."""
        await self.collector.begin()

    async def follow(self) -> None:
        """See `Evidence.follow`; without secondaries, there is nothing to prove."""
        if self.collector.secondaries:
            await self.collector.evidence.follow()

    async def save(self) -> None:
        """Store the state of the bucket of primaries, if its store answers in time."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(SAVE_S):
                await self.collector.evidence.save()

    @property
    def held(self) -> str:
        """The reason why garbage collection waits for a person; empty if it does not."""
        return self.collector.evidence.held

    async def accept(self) -> GarbagePlan:
        """See `GarbageCollector.accept`; returns a new plan."""
        await self.collector.accept()
        self.last = await self.collector.plan()
        return self.last

    async def apply(self, plan: GarbagePlan) -> Removed:
        """See `GarbageCollector.apply`; applies the part of this process."""
        own = tuple(orphan for orphan in plan.orphans if self.keys.holds(orphan.owner))
        return await self.collector.apply(msgspec.structs.replace(plan, orphans=own))

    async def collect(self) -> None:
        """Run a GC cycle: sync the owners of the orphans whose grace period is over.

        A cycle does nothing while the controller is paused.
        """
        if self.policy == "orphan" or self.keys.stopped:
            return
        self.last = plan = await self.collector.plan()
        self.reports.refused(plan)
        if plan.refused:
            return
        orphans = [orphan for orphan in plan.orphans if not orphan.held]
        waiting = {orphan.owner for orphan in orphans if not orphan.due}
        for owner in {orphan.owner for orphan in orphans} - waiting:
            if self.keys.holds(owner):
                self.runs.confirm_missing(owner)
                self.keys.enqueue(owner, Operation.RESYNC)


async def repeat_cycles(
    collect: Callable[[], Awaitable[None]], *, controller: str, interval_s: float
) -> None:
    """Run a GC cycle every *interval_s* while this process leads; a failure ends only its cycle."""
    while True:
        await led()
        try:
            await collect()
        except UnreadError as error:
            await asyncio.sleep(error.delay_s)
            continue
        except (Exception, SystemExit):
            log.exception("a GC cycle failed", controller=controller)
        await asyncio.sleep(interval_s)
