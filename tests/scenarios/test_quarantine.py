"""A key whose sync kills processes is quarantined, also over restarts."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from natsctl.core.environment import within
from natsctl.core.pauses import PausedKeys, Pausing
from natsctl.core.quarantine import SLOT, ClaimedKeys
from natsctl.core.workqueue import WorkQueue
from natsctl.model.store import Stored
from natsctl.testing import Harness, MemoryStore, running
from tests.support.controllers.app_controller import APPS, Apps, app_client, edit
from tests.support.controllers.quarantined_apps import (
    PAUSES,
    Stuck,
    dead,
    deaths,
    die,
    prepared,
    syncs_of,
)
from tests.support.eventually import eventually


@pytest.fixture(autouse=True)
def directory(tmp_path: Path) -> Iterator[Path]:
    with within(claims=ClaimedKeys(tmp_path)):
        yield tmp_path


@asynccontextmanager
async def after_three_deaths(directory: Path) -> AsyncIterator[Harness]:
    """Run the controller until it is idle, after processes died while they held the key shop."""
    stores = await prepared()
    for number in range(2):
        dead(directory, "shop", number)
        async with running(Stuck(), stores=stores) as harness:
            await harness.run_for(1)
    die(directory, "shop")
    async with running(Apps(), stores=stores) as harness:
        await harness.run_until_idle()
        yield harness


async def test_a_key_is_quarantined_after_three_deaths_over_a_restart_and_others_are_synced(
    directory: Path,
) -> None:
    async with after_three_deaths(directory) as harness:
        assert syncs_of(harness) == ["market"]
        assert list(harness.runtime.status().quarantined) == ["shop"]
        assert harness.runtime.explain("shop").quarantined.startswith("3 processes died")
        assert app_client(harness).reasons("shop")[-1] == "Quarantined"
        assert len(harness.runtime.measures().health.quarantined) == 1
    async with running(Apps(), stores=harness.stores) as harness:
        await harness.run_until_idle()
        assert syncs_of(harness) == ["market"]


@pytest.mark.parametrize("requested", [False, True])
async def test_a_key_that_changed_or_that_a_person_requests_is_synced_and_its_deaths_forgotten(
    directory: Path, *, requested: bool
) -> None:
    async with after_three_deaths(directory) as harness:
        if requested:
            harness.runtime.resync("shop")
        else:
            await edit(harness.stores.store(APPS), "shop", "spec", "text", to="new")
        await harness.run_until_idle()
        assert syncs_of(harness) == ["market", "shop"]
        assert harness.runtime.status().quarantined == {}
        await harness.run_for(1)
        assert await deaths(harness.stores) == []


class Watched(Apps):
    """A controller that notes which keys are synced at the same time."""

    name = "apps"
    workers = 4

    def __init__(self) -> None:
        super().__init__()
        self.running: set[str] = set()
        self.together: dict[str, set[str]] = {}

    async def sync_handler(self, key: str) -> float | None:
        self.running.add(key)
        for other in self.running:
            self.together.setdefault(other, set()).update(self.running)
        await asyncio.sleep(1)
        self.running.discard(key)
        return await super().sync_handler(key)


KEYS = [f"app{number}" for number in range(8)]
SUSPECTS = KEYS[:3]


async def test_suspects_are_synced_one_by_one_after_all_others(directory: Path) -> None:
    stores = await prepared(*KEYS)
    die(directory, *SUSPECTS)
    controller = Watched()
    async with running(controller, stores=stores) as harness:
        await harness.run_until(lambda: len(controller.syncs) == len(KEYS))
        assert set(controller.syncs[:5]) == set(KEYS) - set(SUSPECTS)
        assert [controller.together[key] for key in SUSPECTS] == [{key} for key in SUSPECTS]
        assert len(controller.together["app3"]) > 1
        controller.together.clear()
        for key in KEYS:
            await edit(stores.store(APPS), key, "spec", "text", to="new")
        await harness.run_until_idle()
        assert any(len(controller.together[key]) > 1 for key in SUSPECTS)


async def test_keys_that_were_synced_at_the_same_time_are_never_quarantined(
    directory: Path,
) -> None:
    stores = await prepared(*KEYS)
    for _ in range(4):
        die(directory, *SUSPECTS)
        async with running(Stuck(), stores=stores) as harness:
            await harness.run_for(1)
    async with running(Apps(), stores=stores) as harness:
        await harness.run_until(lambda: set(syncs_of(harness)) == set(KEYS))
        assert harness.runtime.status().quarantined == {}
        assert await deaths(stores) == []


async def test_a_suspect_is_synced_although_other_keys_keep_the_workers_busy(
    directory: Path,
) -> None:
    class Busy(Watched):
        name = "apps"

        async def sync_handler(self, key: str) -> float | None:
            await super().sync_handler(key)
            return None if key in SUSPECTS else 0.01

    stores = await prepared(*KEYS)
    die(directory, *SUSPECTS)
    controller = Busy()
    async with running(controller, stores=stores) as harness:
        await harness.run_until(lambda: set(SUSPECTS) <= set(controller.syncs))
        assert [controller.together[key] for key in SUSPECTS] == [{key} for key in SUSPECTS]


async def test_a_suspect_that_is_paused_while_it_waits_to_be_alone_is_not_synced(
    directory: Path,
) -> None:
    class Slow(Watched):
        name = "apps"

        async def sync_handler(self, key: str) -> float | None:
            if key == "app7":
                await asyncio.sleep(3)
            return await super().sync_handler(key)

    stores = await prepared(*KEYS)
    die(directory, *SUSPECTS)
    controller, apps = Slow(), stores.store(APPS)
    async with running(controller, stores=stores) as harness:
        await harness.run_for(2.5)  # the first suspect waits for app7
        for key in SUSPECTS:
            await edit(apps, key, "metadata", "annotations", "natsctl.io/paused", to="true")
        await harness.run_for(60)
        assert set(controller.syncs) == set(KEYS) - set(SUSPECTS)
        for key in SUSPECTS:
            await edit(apps, key, "metadata", "annotations", "natsctl.io/paused", to=None)
        await harness.run_until(lambda: set(SUSPECTS) <= set(controller.syncs))


async def test_a_key_is_a_suspect_while_its_death_is_being_recorded(directory: Path) -> None:
    recorded = asyncio.Event()

    class Slow(MemoryStore):
        async def create(self, key: str, value: bytes) -> Stored:
            await recorded.wait()
            return await super().create(key, value)

    die(directory, "shop")
    quarantine = PausedKeys(WorkQueue[str](), Pausing("apps")).quarantine
    quarantine.store = Slow(PAUSES)
    finding = asyncio.create_task(quarantine.find(shared=True))
    await asyncio.sleep(0)
    assert list(quarantine.suspects) == ["shop"]
    recorded.set()
    await finding
    assert quarantine.deaths["shop"].count == 1


async def test_a_key_leaves_the_record_if_a_suspect_began_while_it_was_written() -> None:
    writes, going = list[bytes](), asyncio.Event()

    class Slow(MemoryStore):
        async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
            await going.wait()
            writes.append(value)
            return await super().update(key, value, revision=revision)

    with within(claims=ClaimedKeys(Path("/dev/null/state"))):
        pausing = Pausing("apps")
    quarantine = PausedKeys(WorkQueue[str](), pausing).quarantine
    quarantine.store, quarantine.suspects = Slow(PAUSES), {"shop": None}
    with pausing.claims.of_loop(quarantine.name, 2) as (one, two):
        await quarantine.find(shared=False)
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(quarantine.write(quarantine.store, pausing.listed))
            market = group.create_task(quarantine.admit("market", two))
            await asyncio.sleep(0)
            shop = group.create_task(quarantine.admit("shop", one))
            await asyncio.sleep(0)
            going.set()
            assert await shop is None
            one.hold("shop")
            await eventually(lambda: writes[-1].startswith(b'{"keys":["shop"],'))
            assert writes[-1].endswith(b'"alone":true}')
            assert not market.done()
            one.release()
            assert await market is None
            writing.cancel()


# ---- the files of claimed keys


@pytest.mark.parametrize("directory", [None, Path("/dev/null/state")])
def test_without_a_directory_on_disk_there_is_no_file(directory: Path | None) -> None:
    claims = ClaimedKeys(directory)
    with claims.of_loop("apps.0", 2) as of_workers:
        assert not claims.on_disk
        for claim in of_workers:
            claim.hold("shop")
        assert claims.busy is (directory is not None)
    assert claims.left_behind("apps.0") == []


@pytest.mark.parametrize(
    "content", [b"", b"\x02\x00sh", b"\xff" * SLOT, b"\x02\x00\xff\xfe" * SLOT]
)
def test_a_damaged_file_has_no_keys(directory: Path, content: bytes) -> None:
    (directory / "apps.0.7-a.held").write_bytes(content)
    assert ClaimedKeys(directory).left_behind("apps.0") == []
    assert list(directory.iterdir()) == []


def test_only_the_user_can_read_the_state_directory(directory: Path) -> None:
    with ClaimedKeys(directory / "id").of_loop("apps.0", 1):
        assert (directory / "id").stat().st_mode & 0o777 == 0o700
