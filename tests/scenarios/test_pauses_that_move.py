"""Pauses and quarantines hold while keys move to other members, and while the leader changes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from natsctl import ControllerRuntime
from natsctl.core.environment import enter, environment, within
from natsctl.core.quarantine import ClaimedKeys
from natsctl.model.pause import Pause
from tests.support.controllers.app_controller import PAUSED, AppClient, Calm, edit
from tests.support.controllers.quarantined_apps import dead
from tests.support.controllers.sharing_group import SHARES, TTL_S, SharingGroup, SharingMember
from tests.support.eventually import eventually

HELD = Pause(reason="waits for a disk", by="ann@desk")
KEYS = [f"app{number}" for number in range(12)]
GARBAGE_CYCLES_S = 600.0  # twenty cycles, and ten times the age of an orphan that is deleted


class Group(SharingGroup[Calm]):
    """Processes that share the keys, or elect a leader for all of them."""

    def __init__(self, *, sharded: bool) -> None:
        super().__init__(Calm, count=SHARES if sharded else 1)
        self.client = AppClient(self.stores)

    async def add(self) -> None:
        """Start another process, and wait until the keys are divided."""
        if (claims := environment().claims) is not None:
            enter(claims=ClaimedKeys(claims.directory))  # those of a process of its own
        self.join()
        await self.settled()

    async def settled(self) -> None:
        """Wait until the keys are divided, and every process has synced its keys."""
        await asyncio.sleep(2 * TTL_S)
        await eventually(lambda: all(map(self.holders, KEYS)), within_s=6 * TTL_S)
        await asyncio.sleep(TTL_S)

    def holders(self, key: str) -> list[SharingMember[Calm]]:
        """Return the process that syncs the key, if any does."""
        holders = [member for member in self.living if member.holds(key)]
        assert len(holders) <= 1
        return holders

    async def moved(self, key: str, *, killed: bool = False) -> SharingMember[Calm]:
        """End the process that syncs the key; return the one that syncs it then."""
        (before,) = self.holders(key)
        await (before.kill() if killed else before.stop())
        await self.settled()
        (after,) = self.holders(key)
        assert after is not before
        return after

    @property
    def runtimes(self) -> list[ControllerRuntime]:
        return [member.controller.runtime for member in self.living]

    def syncs(self, key: str) -> int:
        """Return how often the running processes have synced the key."""
        return sum(member.controller.syncs.count(key) for member in self.living)

    def forget_syncs(self) -> None:
        for member in self.living:
            member.controller.syncs.clear()


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
    await group.add()
    await group.add()
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
    assert after.controller.runtime.status().paused == {"app0": "by ann@desk: waits for a disk"}
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
    await group.add()
    for runtime in group.runtimes:
        await runtime.collect_garbage()
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
    for runtime in group.runtimes:
        plan = await runtime.garbage_plan(at_once=True)
        assert [orphan.held for orphan in plan.orphans] == [
            "app0 is paused by ann@desk: waits for a disk: natsctl resume apps/app0"
        ]
        await runtime.garbage_apply(plan)
    assert "app0.main" in group.client.part_keys


async def test_each_paused_key_is_counted_by_one_process(group: Group) -> None:
    for key in KEYS:
        await edit(group.client.apps, key, *PAUSED, to="true")
    await asyncio.sleep(1)
    await group.moved("app0")
    await group.add()
    assert sum(runtime.measures().paused_keys for runtime in group.runtimes) == len(KEYS)


def quarantined_keys(group: Group) -> list[str]:
    """Return the quarantined keys of all processes, one entry for each process that reports it."""
    return [key for runtime in group.runtimes for key in runtime.status().quarantined]


@pytest.mark.parametrize("killed", [False, True])
async def test_a_quarantined_key_stays_quarantined_for_the_next_holder(
    group: Group, directory: Path, *, killed: bool
) -> None:
    for number in range(3):
        dead(directory, "app0", number)
    await group.add()  # a member that gains keys reads the files
    if quarantined_keys(group) == []:
        await group.moved("app0")  # a leader reads the files when it begins to lead
    group.forget_syncs()
    await group.moved("app0", killed=killed)
    await group.add()
    assert quarantined_keys(group) == ["app0"]
    assert group.syncs("app0") == 0
    assert sum(len(runtime.measures().health.quarantined) for runtime in group.runtimes) == 1
