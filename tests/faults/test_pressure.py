"""Watches and handlers survive more writes than they can process."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import natsctl
from natsctl import Change, WatchBrokenError
from natsctl.jetstream import feed as feeds
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.feed import Feed
from natsctl.jetstream.watch import KvWatch
from natsctl.model.store import Applied, Deleted, Listed, Stored
from tests.support.clients.nats_admin import Admin
from tests.support.controllers.bulk_reader import PADDING, Readers, settled, taken_in, write
from tests.support.controllers.copy_controller import THINGS, Thing
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import breaks, delete_consumers, no_consumers, running
from tests.support.servers.nats_server import NatsServer

UPDATES, KEYS = 8_000, 200
LARGE = 10 * PADDING
GROWTH_MAX = 64 * 2**20  # bytes, of 160 MB that are written


@pytest.mark.usefixtures("patient")
async def test_memory_stays_bounded_while_a_handler_stalls_under_many_updates(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    controller = Readers()
    async with Admin(nats_server.url) as admin:
        async with running(controller, nats_server.url):
            controller.sights.go_on.clear()
            before, largest = resident(), 0
            for update in range(UPDATES):
                await write(admin, f"k{update % KEYS}", f"{update} {LARGE}")
                if update % 100 == 0:
                    largest = max(largest, resident())
            await eventually(lambda: taken_in(controller, UPDATES))
            growth = max(largest, resident()) - before
            print("GROWTH", growth / 2**20)
            assert growth < GROWTH_MAX
            assert not breaks(caplog)
            controller.sights.go_on.set()
            await eventually(lambda: settled(controller, admin), every_s=0.2)
        await eventually(lambda: no_consumers(admin))


async def test_relists_under_constant_writes_miss_no_key(nats_server: NatsServer) -> None:
    """With a history of 1, values are overwritten before a list delivers them."""
    cold = [f"cold{number}" for number in range(1_000)]
    hot = [f"hot{number}" for number in range(1_000)]
    wrong: list[Change[Thing]] = []

    def watch(change: Change[Thing]) -> None:
        before, after = change.before, change.after
        if after is None or (before is not None and before.revision >= after.revision):
            wrong.append(change)

    controller = Readers()
    async with Admin(nats_server.url) as admin:
        async with running(controller, nats_server.url):
            for key in [*hot, *cold]:
                await write(admin, key, PADDING)
            await eventually(lambda: taken_in(controller, len(hot) + len(cold)))
            async with controller.things.informer.subscribe(watch):
                async with overwriting(nats_server.url, hot):
                    for _ in range(3):
                        await restart_watch(controller, admin)
                await eventually(lambda: settled(controller, admin), every_s=0.2)
        assert not wrong
        assert not controller.sights.gone
        await eventually(lambda: no_consumers(admin))


@pytest.mark.usefixtures("patient")
async def test_a_key_overwritten_before_each_event_is_still_listed(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch reads the key directly, and ignores older messages that arrive later."""
    held: list[Stored | Deleted] = []
    shown: list[tuple[str, int]] = []
    async with Admin(nats_server.url) as admin, natsctl.connect(nats_server.url) as nats:

        class Overtaken(Feed):
            async def take(self) -> list[Stored | Deleted]:  # type: ignore[override]
                items = await super().take()
                if any(key == "end of listing" for key, _ in shown):
                    return [*held, *items]  # type: ignore[list-item]
                held.extend(item for item in items if item.key == "hot")  # type: ignore[misc]
                await put(admin, "hot", "tick")
                return [item for item in items if item.key != "hot"]  # type: ignore[misc]

        monkeypatch.setattr(feeds, "Feed", Overtaken)
        await nats.open(Readers.things.kind)
        await put(admin, "hot", "tick")
        async with KvWatch(Bucket(nats.connection, THINGS))() as events:
            async for event in events:
                match event:
                    case Listed(revision):
                        shown.append(("end of listing", revision))
                        await put(admin, "hot", "end")
                    case Applied(stored):
                        shown.append((stored.key, stored.revision))
                if shown and shown[-1][0] == "end":
                    break
    keys = [key for key, _ in shown]
    revisions = [revision for key, revision in shown if key == "hot"]
    assert keys.index("hot") < keys.index("end of listing")
    assert held
    assert min(revisions) > max(item.revision for item in held)
    assert revisions == sorted(revisions)


@pytest.mark.usefixtures("patient")
async def test_a_watch_replaces_a_consumer_that_sends_only_heartbeats(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer on a server without contact to its cluster behaves like this."""

    class Stuck(Feed):
        async def take(self) -> list[Stored | Deleted]:  # type: ignore[override]
            return [item for item in await super().take() if item.key == "first"]  # type: ignore[misc]

    async def follow(watch: KvWatch) -> None:
        async with watch() as events:
            async for event in events:
                if isinstance(event, Listed):
                    await put(admin, "second")

    async with Admin(nats_server.url) as admin, natsctl.connect(nats_server.url) as nats:
        await nats.open(Readers.things.kind)
        await put(admin, "first")
        monkeypatch.setattr(feeds, "Feed", Stuck)
        watch = KvWatch(Bucket(nats.connection, THINGS), verify_s=0.5)
        with pytest.raises(WatchBrokenError, match="revision 2, but the consumer has stopped at 1"):
            await follow(watch)


async def restart_watch(controller: Readers, admin: Admin) -> None:
    """Restart the watch, and wait until the cache has every revision."""
    before = controller.restarts()
    while controller.restarts() == before:  # a watch that is about to start does not break
        await delete_consumers(admin)
        with suppress(AssertionError):
            await eventually(lambda: controller.restarts() > before, within_s=5.0)
    written = (await admin.info(THINGS))["state"]["last_seq"]
    await eventually(lambda: taken_in(controller, written))


async def put(admin: Admin, *keys: str) -> None:
    for key in keys:
        await admin.put(THINGS, key, {"spec": {"text": "again"}})


@asynccontextmanager
async def overwriting(url: str, keys: Sequence[str]) -> AsyncIterator[None]:
    """Write the keys repeatedly, some thousand in a second."""
    stopped = asyncio.Event()

    async def work() -> None:
        async with Admin(url) as admin:
            for number, key in enumerate(itertools.cycle(keys)):
                await write(admin, key, str(number))
                if number % 20 == 0:
                    await asyncio.sleep(0.005)
                if stopped.is_set():
                    return

    async with asyncio.TaskGroup() as group:
        group.create_task(work(), name="overwriting")
        try:
            yield
        finally:
            stopped.set()


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
