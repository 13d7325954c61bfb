"""Dynamic watches of real buckets: many watchers, exact counts, faults, nothing left behind."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import natsctl
from natsctl import Controller, Object, kv, primary
from natsctl.controller.runtime import ControllerRuntime
from natsctl.dynamic import DynamicOptions, DynamicWatcher, ObjectIdentifier, kv_kind
from natsctl.errors import (
    NotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreMissingError,
)
from natsctl.jetstream.stores import Nats
from natsctl.model.selectors import Selector
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

LIMITS = kv_kind("limits")
KIND = kv(bytes, bucket="limits", history=1)
QUIET = DynamicOptions(enable_cache=True, disable_initial_reconcile=True)
OPEN = "authorization { user: u, password: p }"
CLOSED = """authorization { users: [ { user: u, password: p, permissions: {
    publish: { deny: ["$JS.API.CONSUMER.CREATE.KV_limits.>"] } } } ] }"""


def who(name: str) -> ObjectIdentifier:
    return ObjectIdentifier(version="v1", kind="ConfigMap", namespace="default", name=name)


def limit(key: str = "", selector: str = "") -> ObjectIdentifier:
    return ObjectIdentifier(
        group=LIMITS.group,
        version=LIMITS.version,
        kind=LIMITS.kind,
        name=key,
        selector=selector,
        everything=not (key or selector),
    )


class Play:
    """A dynamic watcher at work, and the bucket `limits`."""

    def __init__(self, nats: Nats, options: DynamicOptions) -> None:
        self.nats = nats
        self.calls: Counter[str] = Counter()
        self.reconcile: Callable[[ObjectIdentifier], Awaitable[None]] | None = None
        self.watcher = DynamicWatcher(self._reconcile, nats=nats, options=options)

    async def put(self, key: str, most: int = 1, **labels: str) -> None:
        store = await self.nats.open(KIND)
        body = msgspec.json.encode({"metadata": {"labels": labels}, "spec": {"most": most}})
        try:
            revision = (await store.get(key)).revision
        except NotFoundError:
            await store.create(key, body)
        else:
            await store.update(key, body, revision=revision)

    async def counted(self, count: int) -> None:
        """Wait until the server has so many consumers; we must say the same at once."""
        assert self.watcher.get_watch_count() == count

        async def as_many() -> bool:
            assert await self.consumers() == count
            return True

        await eventually(as_many)

    async def consumers(self) -> int:
        info = await self.nats.connection.api("STREAM.INFO.KV_limits")
        return int(info["state"]["consumer_count"])

    async def back(self) -> None:
        """Wait until the server answers us again."""

        async def answers() -> bool:
            try:
                return await self.consumers() >= 0
            except StoreError:
                return False

        await eventually(answers)

    async def called(self, *names: str) -> None:
        """Wait until the reconciler was called for all of these; it must be for no other."""
        await eventually(lambda: self.calls.keys() >= set(names))
        assert self.calls.keys() == set(names)
        self.calls.clear()

    async def _reconcile(self, watcher: ObjectIdentifier) -> float | None:
        self.calls[watcher.name] += 1
        if self.reconcile is not None:
            await self.reconcile(watcher)
        return None


@asynccontextmanager
async def playing(
    server: NatsServer, options: DynamicOptions = QUIET, *, url: str = ""
) -> AsyncIterator[Play]:
    """Run a dynamic watcher; afterwards no consumer of its is left at the server."""
    async with natsctl.connect(url or server.url) as nats:
        await nats.open(KIND)
        play = Play(nats, options)
        work = asyncio.create_task(play.watcher.start())
        await play.watcher.started.wait()
        try:
            yield play
        finally:
            play.watcher.stop()
            await work
        await play.counted(0)


async def test_a_watcher_is_called_for_its_objects_and_selections(nats_server: NatsServer) -> None:
    async with playing(nats_server) as play:
        await play.watcher.add_or_update_watcher(who("a"), limit("eu"), limit(selector="g=1"))
        await play.watcher.add_watcher(who("b"), limit("eu"))
        await play.counted(2)
        await play.put("eu")
        await play.called("a", "b")
        await play.put("us", g="1")
        await play.called("a")
        await play.put("us", 2)
        await play.called("a")
        await (await play.nats.open(KIND)).delete("eu")
        await play.called("a", "b")
        assert play.watcher.get_from_cache(LIMITS, "", "eu") is None
        await play.watcher.remove_watcher(who("a"))
        await play.counted(1)


async def test_a_bucket_is_watched_however_it_was_made(nats_server: NatsServer) -> None:
    async with playing(nats_server) as play:
        await play.nats.open(kv(bytes, bucket="odd", history=17, ttl_s=999, storage="memory"))
        odd = ObjectIdentifier(group="nats", version="kv", kind="odd", name="x")
        await play.watcher.add_watcher(who("a"), odd)
        assert play.watcher.get_watch_count() == 1
        missing = ObjectIdentifier(group="nats", version="kv", kind="missing", name="x")
        with pytest.raises(StoreMissingError, match="missing"):
            await play.watcher.add_watcher(who("a"), missing)
        assert play.watcher.get_watch_count() == 1
        await play.watcher.remove_watcher(who("a"))


async def test_a_thousand_watchers_over_two_hundred_objects(nats_server: NatsServer) -> None:
    everyone = [who(f"w{number}") for number in range(1000)]
    shared = [limit(f"s{number}") for number in range(200)]
    async with playing(nats_server) as play:
        watcher = play.watcher
        await asyncio.gather(
            *(watcher.add_watcher(one, shared[n % 200]) for n, one in enumerate(everyone))
        )
        await play.counted(200)
        for number in (3, 77, 199):
            await play.put(f"s{number}")
            await play.called(*(f"w{n}" for n in range(number, 1000, 200)))

        await asyncio.gather(
            *(
                watcher.add_or_update_watcher(one, shared[n % 100], shared[199])
                for n, one in enumerate(everyone)
            )
        )
        await play.counted(101)
        await play.put("s199")
        await play.called(*(one.name for one in everyone))
        await play.put("s150")
        await play.put("s50")
        await play.called(*(f"w{n}" for n in range(50, 1000, 100)))

        nats_server.kill()
        await nats_server.start()
        await play.back()
        await play.counted(101)
        await play.put("s50")
        await play.called(*(f"w{n}" for n in range(50, 1000, 100)))
        await asyncio.gather(*(watcher.remove_watcher(one) for one in everyone[:999]))
        await play.counted(2)


async def test_a_batch_that_reads_fewer_objects_stops_the_right_watches(
    nats_server: NatsServer,
) -> None:
    async with playing(nats_server) as play:
        for number in range(40):
            await play.put(f"s{number}", number, g=str(number % 2))

        async def read(name: str, numbers: range) -> list[int]:
            one = who(name)
            async with play.watcher.query_batch(one):
                found = await asyncio.gather(
                    *(play.watcher.get(one, LIMITS, "", f"s{number}") for number in numbers)
                )
                odd = await play.watcher.list(one, LIMITS, "", Selector.parse("g=1"))
            assert len(odd) == 20
            return [at["spec"]["most"] for at in found if at is not None]  # type: ignore[index]

        assert await read("a", range(30)) == [*range(30)]
        assert await read("b", range(20, 40)) == [*range(20, 40)]
        await play.counted(41)
        assert await read("a", range(5)) == [*range(5)]
        await play.counted(26)
        await play.put("s10", 10, g="0")
        await play.put("s2", 2, g="0")
        await play.called("a")


async def test_a_server_that_was_away_loses_no_change(nats_server: NatsServer) -> None:
    kind = kv(bytes, bucket="kept")
    kept = kv_kind("kept")
    async with playing(nats_server) as play:
        store = await play.nats.open(kind)
        names = [f"k{number}" for number in range(30)]
        for name in names:
            identifier = ObjectIdentifier(
                group=kept.group, version=kept.version, kind=kept.kind, name=name
            )
            await store.create(name, b'{"spec": 1}')
            await play.watcher.add_watcher(who(name), identifier)
        nats_server.kill()
        await asyncio.sleep(0.2)
        await nats_server.start()
        async with natsctl.connect(nats_server.url) as other:
            theirs = await other.open(kind)
            for name in names[:10]:
                await theirs.update(
                    name, b'{"spec": 2}', revision=(await theirs.get(name)).revision
                )
            for name in names[10:15]:
                await theirs.delete(name)
        await play.called(*names[:15])
        for name in names:
            await play.watcher.remove_watcher(who(name))
        assert play.watcher.get_watch_count() == 0


async def test_a_permission_taken_away_is_seen_and_heals_when_it_is_given_back(
    nats_server: NatsServer,
) -> None:
    await nats_server.stop()
    nats_server.config = OPEN
    await nats_server.start()
    url = nats_server.url.replace("nats://", "nats://u:p@")
    seen: list[object] = []
    async with playing(nats_server, url=url) as play:

        async def reconcile(watcher: ObjectIdentifier) -> None:
            async with play.watcher.query_batch(watcher):
                try:
                    found = await play.watcher.get(watcher, LIMITS, "", "eu")
                except PermissionDeniedError:
                    seen.append("denied")
                    raise
                seen.append(None if found is None else found["spec"]["most"])  # type: ignore[index]

        play.reconcile = reconcile
        await play.watcher.add_watcher(who("a"), limit("eu"))
        await play.put("eu", 1)
        await eventually(lambda: seen == [1])
        await restarted(nats_server, CLOSED)
        await eventually(lambda: "denied" in seen)
        await eventually(lambda: play.watcher.get_watch_count() == 0)
        await restarted(nats_server, OPEN)
        await play.back()
        await play.put("eu", 2)
        await eventually(lambda: seen[-1] == 2)
        await play.counted(1)


async def restarted(server: NatsServer, config: str) -> None:
    """Have the server begin anew with other permissions."""
    server.kill()
    server.config = config
    await server.start()


class App(Object, frozen=True):
    spec: dict[str, Any]


class Readers(Controller):
    """Reads the limit that the app names, and says in its status what it is."""

    apps = primary(kv(App, bucket="apps", storage="memory"))

    async def sync_handler(self, key: str) -> float | None:
        app = self.apps.get(key)
        if app is not None:
            found = await self.reads.get(kv(App, bucket="limits2"), app.spec["limit"])
            most = None if found is None else found.spec["most"]
            await self.apps.update_status(key, {"most": most})
        return None


async def test_a_controller_is_woken_by_what_its_syncs_have_read(nats_server: NatsServer) -> None:
    controller = Readers()
    async with natsctl.connect(nats_server.url) as nats:
        runtime = ControllerRuntime(controller, nats=nats)
        work = asyncio.create_task(runtime.run())
        await runtime.synced.wait()
        limits = await nats.open(kv(App, bucket="limits2"))
        for number in range(20):
            app = App(spec={"limit": "eu" if number % 2 else "us"})
            await controller.apps.put(f"app-{number}", app)

        async def shown(number: int) -> object:
            app = await controller.apps.read(f"app-{number}")
            return None if app is None else app.status.get("most")

        await eventually(lambda: controller.reads.watch_count == 2)
        eu = await limits.create("eu", b'{"spec": {"most": 5}}')
        for number in (1, 3, 19):
            await eventually(lambda at=number: _is(shown(at), 5))  # type: ignore[misc]
        await limits.update("eu", b'{"spec": {"most": 6}}', revision=eu.revision)
        for number in (1, 3, 19):
            await eventually(lambda at=number: _is(shown(at), 6))  # type: ignore[misc]
        assert await shown(0) is None
        info = await nats.connection.api("STREAM.INFO.KV_limits2")
        assert info["state"]["consumer_count"] == 2
        runtime.stop()
        await work
        info = await nats.connection.api("STREAM.INFO.KV_limits2")
        assert info["state"]["consumer_count"] == 0


async def _is(found: Awaitable[object], expected: object) -> bool:
    return await found == expected
