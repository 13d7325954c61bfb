"""Dynamic watches of real buckets survive faults and leave no consumer behind."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import natsctl
from natsctl import Controller, ControllerRuntime, Object, Selector, kv, primary
from natsctl.dynamic import DynamicOptions, DynamicWatcher, ObjectIdentifier, kv_kind
from natsctl.errors import (
    PermissionDeniedError,
    StoreError,
    StoreMissingError,
)
from tests.support.clients.nats import Nats
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.stores.documents import put

LIMITS = kv_kind("limits")
KIND = kv(bytes, bucket="limits", history=1)
QUIET = DynamicOptions(enable_cache=True, disable_initial_reconcile=True, list_timeout_s=240)
OPEN = "authorization { timeout: 60, user: u, password: p }"
CLOSED = """authorization { timeout: 60, users: [ { user: u, password: p, permissions: {
    publish: { deny: ["$JS.API.CONSUMER.CREATE.KV_limits.>"] } } } ] }"""


def watcher_named(name: str) -> ObjectIdentifier:
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


class WatcherBed:
    """A running dynamic watcher and the bucket `limits`."""

    def __init__(self, nats: Nats, options: DynamicOptions) -> None:
        self.nats = nats
        self.calls: Counter[str] = Counter()
        self.reconcile: Callable[[ObjectIdentifier], Awaitable[None]] | None = None
        self.watcher = DynamicWatcher(self._reconcile, nats=nats, options=options)

    async def put(self, key: str, value_max: int = 1, **labels: str) -> None:
        store = await self.nats.open(KIND)
        await put(store, key, {"metadata": {"labels": labels}, "spec": {"most": value_max}})

    async def counted(self, count: int) -> None:
        """Check the watch count of the watcher, and wait until the server has as many consumers."""
        assert self.watcher.get_watch_count() == count

        async def has_consumers() -> bool:
            assert await self.consumers() == count
            return True

        await eventually(has_consumers)

    async def consumers(self) -> int:
        info = await self.nats.connection.api("STREAM.INFO.KV_limits")
        return int(info["state"]["consumer_count"])

    async def reconnected(self) -> None:
        """Wait until the server responds to requests again."""

        async def responds() -> bool:
            try:
                return await self.consumers() >= 0
            except StoreError:
                return False

        await eventually(responds)

    async def called(self, *names: str) -> None:
        """Wait until the reconciler was called for these names, and check that no other was."""
        await eventually(lambda: self.calls.keys() >= set(names))
        assert self.calls.keys() == set(names)
        self.calls.clear()

    async def _reconcile(self, watcher: ObjectIdentifier) -> float | None:
        self.calls[watcher.name] += 1
        if self.reconcile is not None:
            await self.reconcile(watcher)
        return None


@asynccontextmanager
async def watching(
    server: NatsServer, options: DynamicOptions = QUIET, *, url: str = ""
) -> AsyncIterator[WatcherBed]:
    """Run a dynamic watcher, and check at the end that it leaves no consumer."""
    async with natsctl.connect(url or server.url) as nats:
        await nats.open(KIND)
        bed = WatcherBed(nats, options)
        work = asyncio.create_task(bed.watcher.start())
        await bed.watcher.started.wait()
        try:
            yield bed
        finally:
            bed.watcher.stop()
            await work
        await bed.counted(0)


async def test_a_watcher_is_called_for_its_objects_and_selections(nats_server: NatsServer) -> None:
    async with watching(nats_server) as bed:
        await bed.watcher.add_or_update_watcher(
            watcher_named("a"), limit("eu"), limit(selector="g=1")
        )
        await bed.watcher.add_watcher(watcher_named("b"), limit("eu"))
        await bed.counted(2)
        await bed.put("eu")
        await bed.called("a", "b")
        await bed.put("us", g="1")
        await bed.called("a")
        await bed.put("us", 2)
        await bed.called("a")
        await (await bed.nats.open(KIND)).delete("eu")
        await bed.called("a", "b")
        assert bed.watcher.get_from_cache(LIMITS, "", "eu") is None
        await bed.watcher.remove_watcher(watcher_named("a"))
        await bed.counted(1)


async def test_a_bucket_with_any_options_is_watched(nats_server: NatsServer) -> None:
    async with watching(nats_server) as bed:
        await bed.nats.open(kv(bytes, bucket="odd", history=17, ttl_s=999, storage="memory"))
        odd = ObjectIdentifier(group="nats", version="kv", kind="odd", name="x")
        await bed.watcher.add_watcher(watcher_named("a"), odd)
        assert bed.watcher.get_watch_count() == 1
        missing = ObjectIdentifier(group="nats", version="kv", kind="missing", name="x")
        with pytest.raises(StoreMissingError, match="missing"):
            await bed.watcher.add_watcher(watcher_named("a"), missing)
        assert bed.watcher.get_watch_count() == 1
        await bed.watcher.remove_watcher(watcher_named("a"))


async def test_a_restart_of_the_server_loses_no_change(nats_server: NatsServer) -> None:
    kind = kv(bytes, bucket="kept")
    kept = kv_kind("kept")
    async with watching(nats_server) as bed:
        store = await bed.nats.open(kind)
        names = [f"k{number}" for number in range(30)]
        for name in names:
            identifier = ObjectIdentifier(
                group=kept.group, version=kept.version, kind=kept.kind, name=name
            )
            await store.create(name, b'{"spec": 1}')
            await bed.watcher.add_watcher(watcher_named(name), identifier)
        nats_server.kill()
        await asyncio.sleep(0.2)
        await nats_server.start()
        async with natsctl.connect(nats_server.url) as second_client:
            second_store = await second_client.open(kind)
            for name in names[:10]:
                await second_store.update(
                    name, b'{"spec": 2}', revision=(await second_store.get(name)).revision
                )
            for name in names[10:15]:
                await second_store.delete(name)
        await bed.called(*names[:15])
        for name in names:
            await bed.watcher.remove_watcher(watcher_named(name))
        assert bed.watcher.get_watch_count() == 0


async def test_a_revoked_permission_ends_the_watch_until_it_is_granted_again(
    nats_server: NatsServer,
) -> None:
    await nats_server.stop()
    nats_server.config = OPEN
    await nats_server.start()
    url = nats_server.url.replace("nats://", "nats://u:p@")
    seen: list[object] = []
    async with watching(nats_server, url=url) as bed:

        async def reconcile(watcher: ObjectIdentifier) -> None:
            async with bed.watcher.query_batch(watcher):
                try:
                    limit_object = await bed.watcher.get(watcher, LIMITS, "", "eu")
                except PermissionDeniedError:
                    seen.append("denied")
                    raise
                seen.append(None if limit_object is None else limit_object["spec"]["most"])  # type: ignore[index]

        bed.reconcile = reconcile
        await bed.watcher.add_watcher(watcher_named("a"), limit("eu"))
        await bed.put("eu", 1)
        await eventually(lambda: seen[-1:] == [1])
        await restart(nats_server, CLOSED)
        await eventually(lambda: "denied" in seen)
        await eventually(lambda: bed.watcher.get_watch_count() == 0)
        await restart(nats_server, OPEN)
        await bed.reconnected()
        await bed.put("eu", 2)
        await eventually(lambda: seen[-1] == 2)
        await bed.counted(1)


async def restart(server: NatsServer, config: str) -> None:
    """Restart the server with other permissions."""
    server.kill()
    server.config = config
    await server.start()


class App(Object, frozen=True):
    spec: dict[str, Any]


class Readers(Controller):
    """Copies the limit that an app names to the status of the app."""

    apps = primary(kv(App, bucket="apps", storage="memory"))

    async def sync_handler(self, key: str) -> float | None:
        app = self.apps.get(key)
        if app is not None:
            limit_object = await self.reads.get(kv(App, bucket="limits2"), app.spec["limit"])
            value_max = None if limit_object is None else limit_object.spec["most"]
            await self.apps.update_status(key, {"most": value_max})
        return None


async def test_a_controller_syncs_again_when_an_object_that_it_read_changes(
    nats_server: NatsServer,
) -> None:
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
            await eventually(lambda number=number: _is(shown(number), 5))  # type: ignore[misc]
        await limits.update("eu", b'{"spec": {"most": 6}}', revision=eu.revision)
        for number in (1, 3, 19):
            await eventually(lambda number=number: _is(shown(number), 6))  # type: ignore[misc]
        assert await shown(0) is None

        async def consumers() -> int:
            info = await nats.connection.api("STREAM.INFO.KV_limits2")
            return int(info["state"]["consumer_count"])

        await eventually(lambda: _is(consumers(), 2))
        runtime.stop()
        await work
        await eventually(lambda: _is(consumers(), 0))


async def _is(value: Awaitable[object], expected: object) -> bool:
    return await value == expected


async def test_a_batch_that_reads_fewer_objects_stops_the_right_watches(
    nats_server: NatsServer,
) -> None:
    async with watching(nats_server) as bed:
        for number in range(40):
            await bed.put(f"s{number}", number, g=str(number % 2))

        async def read(name: str, numbers: range) -> list[int]:
            watcher_id = watcher_named(name)
            async with bed.watcher.query_batch(watcher_id):
                documents = await asyncio.gather(
                    *(bed.watcher.get(watcher_id, LIMITS, "", f"s{number}") for number in numbers)
                )
                odd = await bed.watcher.list(watcher_id, LIMITS, "", Selector.parse("g=1"))
            assert len(odd) == 20
            return [document["spec"]["most"] for document in documents if document is not None]  # type: ignore[index]

        assert await read("a", range(30)) == [*range(30)]
        assert await read("b", range(20, 40)) == [*range(20, 40)]
        await bed.counted(41)
        assert await read("a", range(5)) == [*range(5)]
        await bed.counted(26)
        await bed.put("s10", 10, g="0")
        await bed.put("s2", 2, g="0")
        await bed.called("a")
