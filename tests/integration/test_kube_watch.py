"""Watches of a real cluster lose no change: large lists, faults and selectors."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import msgspec
import pytest

from natsctl import KubeOptions, Manifest, connect_kube, kube
from natsctl.core.informer import Informer
from natsctl.errors import NotFoundError, PermissionDeniedError
from natsctl.kubernetes.cluster import Kube
from natsctl.kubernetes.store import KubeStore
from natsctl.kubernetes.watch import Incarnation
from natsctl.model.documents import metadata_of, parse
from natsctl.model.store import Applied, Deleted, Listing, Store, Stored, WatchEvent
from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.tcp_proxy import CutProxy
from tests.support.stores.backends import listing, take
from tests.support.stores.custom_resources import WatchedWire, cluster
from tests.support.stores.sample_objects import informed

CONFIGS = kube("v1", "ConfigMap")


def value(text: str = "hi", **labels: str) -> bytes:
    return msgspec.json.encode({"metadata": {"labels": labels}, "data": {"text": text}})


@pytest.fixture
async def stores(kube_server: KubeServer) -> AsyncIterator[Kube]:
    async with cluster(kube_server) as stores:
        yield stores


async def put(store: Store, key: str, text: str = "hi") -> Stored:
    try:
        revision = (await store.get(key)).revision
    except NotFoundError:
        return await store.create(key, value(text))
    return await store.update(key, value(text), revision=revision)


async def put_all(store: Store, keys: Iterable[str]) -> dict[str, Stored]:
    return {stored.key: stored for stored in await asyncio.gather(*(put(store, k) for k in keys))}


def shown(events: list[WatchEvent]) -> dict[str, Stored]:
    return {event.stored.key: event.stored for event in events if isinstance(event, Applied)}


def cached(informer: Informer[Manifest]) -> dict[str, Stored]:
    entries = (informer.table.get(key) for key in list(informer.table.keys()))
    return {stored.key: stored for stored in entries if stored is not None}


async def listed_objects(store: Store) -> dict[str, Stored]:
    """Return the objects of a new list."""
    async with store.watch() as events:
        return shown(await listing(events))


async def wait_until_equal(informer: Informer[Manifest], store: Store) -> None:
    """Wait until the cache of the informer equals the store."""

    async def same() -> bool:
        return cached(informer) == await listed_objects(store)

    await eventually(same, every_s=0.1)


class TestListing:
    async def test_a_list_of_several_pages_has_each_object_once(
        self,
        stores: Kube,
        kube_server: KubeServer,
        kube_namespace: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("natsctl.kubernetes.watch.PAGE", 5)
        wire = WatchedWire(stores.transport)
        kind = kube("v1", "ConfigMap", namespace=kube_namespace)
        store = KubeStore(wire, stores.discovery, kind, Incarnation("here"))
        expected = await put_all(store, (f"{kube_namespace}/c{n}" for n in range(12)))
        async with store.watch() as events:
            begin, *middle, _ = await listing(events)
        assert isinstance(begin, Listing)
        assert len(middle) == 12
        assert shown(middle) == expected
        assert wire.pages == (0 if kube_server.lists_within_watches() else 3)

    async def test_a_metadata_only_kind_lists_only_metadata(
        self, stores: Kube, kube_namespace: str
    ) -> None:
        whole_objects = await stores.open(kube("v1", "ConfigMap", namespace=kube_namespace))
        store = await stores.open(
            kube("v1", "ConfigMap", namespace=kube_namespace, metadata_only=True)
        )
        await put(whole_objects, f"{kube_namespace}/a")
        async with store.watch() as events:
            await put(whole_objects, f"{kube_namespace}/b")
            taken = await listing(events)
            await put(whole_objects, f"{kube_namespace}/c")
            taken += await take(events, 1)
        objects = shown(taken)
        assert [key.rpartition("/")[2] for key in objects] == ["a", "b", "c"]
        for stored in objects.values():
            document = parse(stored.value)
            assert set(document) == {"apiVersion", "kind", "metadata"}
            assert (document["apiVersion"], document["kind"]) == ("v1", "ConfigMap")
            assert "managedFields" not in metadata_of(document)
            assert await store.get(stored.key) == stored


async def test_only_objects_with_the_labels_have_events(stores: Kube, kube_namespace: str) -> None:
    """An object that loses its label is a deleted event, until it matches again."""
    keys = [f"{kube_namespace}/{name}" for name in ("in", "out", "later")]
    store = await stores.open(CONFIGS)
    created = await store.create(keys[0], value(a="1"))
    await store.create(keys[1], value(a="2"))
    part = await stores.open(kube("v1", "ConfigMap", namespace=kube_namespace, labels={"a": "1"}))
    async with part.watch() as events:
        assert list(shown(await listing(events))) == [keys[0]]
        await put(store, keys[1])
        later = await store.create(keys[2], value(a="1"))
        assert await take(events, 1) == [Applied(later)]
        unlabelled = await store.update(keys[0], value(), revision=created.revision)
        assert await take(events, 1) == [Deleted(keys[0], unlabelled.revision)]
        matching = await store.update(keys[0], value(a="1"), revision=unlabelled.revision)
        assert await take(events, 1) == [Applied(matching)]


class TestEnding:
    async def test_a_watch_request_that_the_server_ends_continues_without_a_relist(
        self, stores: Kube, kube_namespace: str
    ) -> None:
        wire = WatchedWire(stores.transport)
        kind = kube("v1", "ConfigMap", namespace=kube_namespace)
        store = KubeStore(wire, stores.discovery, kind, Incarnation("here"), timeout_s=1.0)
        received: list[WatchEvent] = []
        written: list[Stored] = []

        async def follow() -> None:
            async with store.watch() as events:
                received.extend(await listing(events))
                while True:
                    received.append(await anext(events))

        task = asyncio.create_task(follow())
        while wire.streams < 3 and not task.done():
            written.append(await put(store, f"{kube_namespace}/shop", str(len(written))))
            await asyncio.sleep(0.05)

        def all_received() -> bool:
            return [e.stored for e in received if isinstance(e, Applied)][-1:] == written[-1:]

        assert not task.done(), task
        await eventually(all_received)
        task.cancel()
        await asyncio.wait({task})
        assert sum(isinstance(event, Listing) for event in received) == 1
        live = [event.stored for event in received if isinstance(event, Applied)]
        assert live == written[-len(live) :]
        assert wire.listings == 1


@asynccontextmanager
async def through(
    server: KubeServer, proxy: CutProxy, **options_of_kube: float
) -> AsyncIterator[Kube]:
    """Connect to the cluster through a proxy."""
    options = KubeOptions(
        server=proxy.url.replace("nats://", "https://"),
        token=server.admin_token,
        tls_ca=str(server.ca),
        timeout_s=20.0,
    )
    async with connect_kube(options, **options_of_kube) as stores:  # type: ignore[arg-type]
        yield stores


class TestFaults:
    async def test_cut_connections_lose_no_change(
        self, stores: Kube, kube_server: KubeServer, kube_namespace: str
    ) -> None:
        kind = kube("v1", "ConfigMap", namespace=kube_namespace)
        store = await stores.open(kind)
        async with CutProxy(kube_server.url) as proxy, through(kube_server, proxy) as proxied:
            informer = Informer(await proxied.open(kind), kind)
            await put_all(store, (f"{kube_namespace}/c{n}" for n in range(20)))
            async with informed(informer):
                for turn in range(3):
                    proxy.cut()
                    await store.delete(f"{kube_namespace}/c{turn}")
                    await put(store, f"{kube_namespace}/c{turn + 10}", f"turn {turn}")
                    await proxy.heal()
                    await wait_until_equal(informer, store)

    async def test_a_silent_connection_is_replaced(
        self,
        stores: Kube,
        kube_server: KubeServer,
        kube_namespace: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("natsctl.kubernetes.watch.GRACE_S", 0.5)
        kind = kube("v1", "ConfigMap", namespace=kube_namespace)
        store = await stores.open(kind)
        async with (
            CutProxy(kube_server.url) as hole,
            CutProxy(hole.url) as proxy,
            through(kube_server, proxy) as proxied,
        ):
            wire = WatchedWire(proxied.transport)
            informer = Informer(
                KubeStore(wire, proxied.discovery, kind, Incarnation("there"), timeout_s=2.0), kind
            )
            async with informed(informer):
                await put(store, f"{kube_namespace}/a")
                await wait_until_equal(informer, store)
                hole.freeze()
                wire.requests.clear()
                await put(store, f"{kube_namespace}/b")
                await store.delete(f"{kube_namespace}/a")
                await eventually(lambda: wire.requests)  # the watch has sent a request
                hole.thaw()
                await wait_until_equal(informer, store)
                assert wire.listings == 1

    async def test_an_expired_page_restarts_the_list(
        self, own_kube_server: KubeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("natsctl.kubernetes.watch.PAGE", 5)
        if own_kube_server.lists_within_watches():
            pytest.skip("this server lists within a watch, which has no pages")
        namespace = own_kube_server.new_namespace()
        kind = kube("v1", "ConfigMap", namespace=namespace)
        async with cluster(own_kube_server) as stores:
            store = await stores.open(kind)
            written = await put_all(store, (f"{namespace}/c{n}" for n in range(8)))
            async with store.watch() as events:
                seen = await take(events, 6)
                await store.delete(f"{namespace}/c0")
                own_kube_server.compact()
                seen += await listing(events)
        begins = [index for index, event in enumerate(seen) if isinstance(event, Listing)]
        assert begins == [0, 6]
        del written[f"{namespace}/c0"]
        relisted = shown(seen[6:])
        assert {key: relisted[key] for key in written} == written
        assert f"{namespace}/c0" not in relisted


class TestHealing:
    async def test_an_informer_lists_when_its_permission_is_granted(
        self, stores: Kube, kube_server: KubeServer, kube_namespace: str
    ) -> None:
        kind = kube("v1", "ConfigMap", namespace=kube_namespace)
        stored = await put(await stores.open(kind), f"{kube_namespace}/shop")
        async with cluster(kube_server, user="guest") as guests:
            informer = Informer(await guests.open(kind), kind)
            task = asyncio.create_task(informer.run())

            def denied() -> bool:
                return isinstance(informer.failure, PermissionDeniedError)

            await eventually(denied)
            verb = "watch" if kube_server.lists_within_watches() else "list"
            assert f"{verb} configmaps in namespace '{kube_namespace}'" in str(informer.failure)
            rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}
            await asyncio.to_thread(kube_server.allow, "guest", [rule], namespace=kube_namespace)
            await asyncio.wait_for(informer.table.synced.wait(), 60)
            assert cached(informer) == {stored.key: stored}
            task.cancel()
            await asyncio.wait({task})
