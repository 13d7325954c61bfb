"""Pauses and quarantines hold while keys move to other members, and while the leader changes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from natsctl import ControllerRuntime, Operator
from natsctl.core.coordination.shares import Participation
from natsctl.core.coordination.term import SHARES
from natsctl.core.environment import enter, environment, within
from natsctl.core.quarantine import ClaimedKeys
from natsctl.model.bookkeeping import PAUSES
from natsctl.model.pause import Pause
from natsctl.testing import MemoryStores
from tests.support.controllers.app_controller import AppClient, Apps, edit
from tests.support.controllers.quarantined_apps import die
from tests.support.controllers.sharing_group import TTL_S, Way, WayStore
from tests.support.eventually import eventually

PAUSED = ("metadata", "annotations", "natsctl.io/paused")
HELD = Pause(reason="waits for a disk", by="ann@desk")
KEYS = [f"app{number}" for number in range(12)]
GARBAGE_CYCLES_S = 600.0  # twenty cycles, and ten times the age of an orphan that is deleted


class Calm(Apps):
    """A controller that resyncs no key during a test."""

    name = "apps"
    resync_s = 1e6


class Process:
    """A simulated process that shares the keys, or takes part in leader election."""

    def __init__(self, stores: MemoryStores, *, sharded: bool) -> None:
        clock, self.way = asyncio.get_running_loop().time, Way()
        if (claims := environment().claims) is not None:
            enter(claims=ClaimedKeys(claims.directory))  # those of a process of its own
        self.controller = Calm()
        make = partial(
            Participation,
            lambda kind: WayStore(stores, kind, self.way),
            count=SHARES if sharded else 1,
            ttl_s=TTL_S,
            clock=clock,
        )
        self.operator = Operator([self.controller], nats=stores, participate=make)
        self.task = asyncio.create_task(self.operator.run())

    @property
    def runtime(self) -> ControllerRuntime:
        return self.controller.runtime

    def has(self, key: str) -> bool:
        return self.runtime.synced.is_set() and self.runtime.holds(key)

    async def stop(self) -> None:
        """End the process; its keys move at once."""
        self.operator.stop()
        await self.task

    async def kill(self) -> None:
        """End the process as a crash does: its lease and its member record stay."""
        self.way.cut = True
        self.task.cancel()
        await asyncio.wait((self.task,))


class Group:
    """Processes that run one controller, their stores, and a client."""

    def __init__(self, *, sharded: bool) -> None:
        self.stores = MemoryStores()
        self.client = AppClient(self.stores)
        self.records = self.stores.store(PAUSES)
        self._sharded = sharded
        self._processes: list[Process] = []

    @property
    def running(self) -> list[Process]:
        return [process for process in self._processes if not process.task.done()]

    async def join(self) -> Process:
        """Start another process, and wait until the keys are divided."""
        process = Process(self.stores, sharded=self._sharded)
        self._processes.append(process)
        await self.settled()
        return process

    async def settled(self) -> None:
        """Wait until the keys are divided, and every process has synced its keys."""
        await asyncio.sleep(2 * TTL_S)
        await eventually(lambda: all(self.holder(key) for key in KEYS), within_s=6 * TTL_S)
        await asyncio.sleep(TTL_S)

    def holder(self, key: str) -> Process | None:
        """Return the process that syncs the key, None if no process does."""
        holders = [process for process in self.running if process.has(key)]
        assert len(holders) <= 1
        return holders[0] if holders else None

    def holder_of(self, key: str) -> Process:
        """Return the process that syncs the key."""
        holder = self.holder(key)
        assert holder is not None
        return holder

    async def moved(self, key: str, *, killed: bool = False) -> Process:
        """End the process that syncs the key; return the one that syncs it then."""
        before = self.holder_of(key)
        await (before.kill() if killed else before.stop())
        await self.settled()
        after = self.holder_of(key)
        assert after is not before
        return after

    def syncs(self, key: str) -> int:
        """Return how often the running processes have synced the key."""
        return sum(process.controller.syncs.count(key) for process in self.running)

    def forget_syncs(self) -> None:
        for process in self.running:
            process.controller.syncs.clear()

    async def close(self) -> None:
        for process in self.running:
            await process.stop()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with within(claims=ClaimedKeys(tmp_path)):
        yield tmp_path


@pytest.fixture(params=["members", "leaders"])
async def group(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[Group]:
    """Two processes that have built the apps `KEYS`."""
    group = Group(sharded=request.param == "members")
    for key in KEYS:
        await group.client.app(key)
    await group.join()
    await group.join()
    group.forget_syncs()
    yield group
    await group.close()


@pytest.mark.parametrize("killed", [False, True])
async def test_a_change_while_paused_and_moved_is_synced_once_by_the_next_holder(
    group: Group, *, killed: bool
) -> None:
    await edit(group.client.apps, "app0", *PAUSED, to=HELD.text)
    await edit(group.client.apps, "app0", "spec", "text", to="before")
    await asyncio.sleep(1)
    after = await group.moved("app0", killed=killed)
    await edit(group.client.apps, "app0", "spec", "text", to="after")
    await asyncio.sleep(1)
    assert group.syncs("app0") == 0
    assert after.runtime.status().paused == {"app0": "by ann@desk: waits for a disk"}
    await edit(group.client.apps, "app0", *PAUSED, to=None)
    await asyncio.sleep(1)
    assert after.controller.syncs.count("app0") == group.syncs("app0") == 1
    assert (await group.client.texts())["app0.main"] == "after"


@pytest.mark.parametrize("killed", [False, True])
async def test_a_deleted_paused_object_keeps_its_secondaries_over_moves(
    group: Group, *, killed: bool
) -> None:
    await edit(group.client.apps, "app0", *PAUSED, to=HELD.text)
    await asyncio.sleep(1)
    await group.client.apps.delete("app0")
    await asyncio.sleep(1)
    await group.moved("app0", killed=killed)
    await group.join()
    for process in group.running:
        await process.runtime.collect_garbage()
    await asyncio.sleep(GARBAGE_CYCLES_S)
    assert "app0.main" in group.client.part_keys
    await group.client.apps.delete("app0", purge=True)
    await asyncio.sleep(TTL_S)
    assert "app0.main" not in group.client.part_keys


async def test_garbage_collection_of_every_process_names_the_pause(group: Group) -> None:
    await edit(group.client.apps, "app0", *PAUSED, to=HELD.text)
    await asyncio.sleep(1)
    await group.client.apps.delete("app0")
    await asyncio.sleep(1)
    for process in group.running:
        plan = await process.runtime.garbage_plan(at_once=True)
        assert [orphan.held for orphan in plan.orphans] == [
            "app0 is paused by ann@desk: waits for a disk: natsctl resume apps/app0"
        ]
        await process.runtime.garbage_apply(plan)
    assert "app0.main" in group.client.part_keys


async def test_each_paused_key_is_counted_by_one_process(group: Group) -> None:
    for key in KEYS:
        await edit(group.client.apps, key, *PAUSED, to="true")
    await asyncio.sleep(1)
    await group.moved("app0")
    await group.join()
    assert sum(process.runtime.measures().paused_keys for process in group.running) == len(KEYS)


async def quarantined(group: Group, directory: Path, *keys: str) -> None:
    """Let three processes die with each of the keys, and another process find their files."""
    for key in 3 * keys:
        die(directory, key)
    await group.join()  # a member that gains keys reads the files
    if not all(key in quarantined_keys(group) for key in keys):
        await group.moved(keys[0])  # a leader reads the files when it begins to lead


def quarantined_keys(group: Group) -> list[str]:
    """Return the quarantined keys of all processes, one entry for each process that reports it."""
    return [key for process in group.running for key in process.runtime.status().quarantined]


@pytest.mark.parametrize("killed", [False, True])
async def test_a_quarantined_key_stays_quarantined_for_the_next_holder(
    group: Group, directory: Path, *, killed: bool
) -> None:
    await quarantined(group, directory, "app0")
    group.forget_syncs()
    await group.moved("app0", killed=killed)
    await group.join()
    assert quarantined_keys(group) == ["app0"]
    assert group.syncs("app0") == 0
    assert sum(len(process.runtime.measures().health.quarantined) for process in group.running) == 1
