"""Resource streams survive restarts of a real nats-server and leave no consumer behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nats.js import JetStreamContext

from natsctl import (
    EventKind,
    EventStream,
    KubeOptions,
    Manifest,
    Resource,
    connect,
    connect_kube,
    kube,
)
from tests.support.clients.plain_client import plain_client
from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.nats_server import NatsServer
from tests.support.stores.sample_objects import THINGS, Thing, value

CONSUMERS_S = 8.0  # within which requested deletions take effect


class Subscriber:
    """Handles every event, and records the objects."""

    def __init__(self, events: EventStream[Thing]) -> None:
        self.things: dict[str, str] = {}
        self.syncs = 0
        self._events = events

    async def run(self) -> None:
        async for event in self._events:
            async with event:
                match event.kind:
                    case EventKind.SYNC:
                        self.syncs += 1
                    case EventKind.UPSERT:
                        self.things[event.key] = event.object.spec.text
                    case EventKind.DELETE:
                        assert self.things.pop(event.key) == event.object.spec.text


@asynccontextmanager
async def plain(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    async with plain_client(server.url) as client:
        yield client.jetstream()


async def consumers(server: NatsServer) -> int:
    """Return the number of consumers of the server."""
    async with plain(server) as js:
        streams = [info.config.name or "" for info in await js.streams_info()]
        return sum([len(await js.consumers_info(name)) for name in streams])


async def test_subscribers_see_equal_objects_over_restarts_and_leave_no_consumer(
    nats_server: NatsServer,
) -> None:
    base = len(asyncio.all_tasks())
    async with connect(nats_server.url, verify_s=1.0) as stores:
        async with (await stores.open(THINGS)).watch():
            pass  # the connection of the watches stays open
        before = len(asyncio.all_tasks())
        async with Resource(THINGS, stores) as resource:
            await eventually(lambda: has_no_consumer(nats_server, before), within_s=CONSUMERS_S)
            async with (
                resource.events() as first,
                resource.events() as second,
                asyncio.TaskGroup() as group,
            ):
                subscribers = [Subscriber(events) for events in (first, second)]
                for subscriber in subscribers:
                    group.create_task(subscriber.run())
                await change_objects(nats_server, subscribers)
                store = await resource.store()
                assert {key: store.get_by_key(key) for key in store.iter_keys()} == {
                    "new": THINGS.decode(value("three"))
                }
                await eventually(lambda: has_one_consumer(nats_server), within_s=CONSUMERS_S)
                resource.stop()
        await eventually(lambda: has_no_consumer(nats_server, before), within_s=CONSUMERS_S)
    await eventually(lambda: has_no_consumer(nats_server, base), within_s=CONSUMERS_S)


async def has_one_consumer(server: NatsServer) -> bool:
    return await consumers(server) == 1


async def has_no_consumer(server: NatsServer, tasks_max: int) -> bool:
    """Return whether the server has no consumer, and this process no more tasks than that."""
    assert await consumers(server) == 0
    assert len(asyncio.all_tasks()) <= tasks_max
    return True


async def change_objects(server: NatsServer, subscribers: list[Subscriber]) -> None:
    async def all_see(expected: dict[str, str]) -> None:
        def have_objects() -> bool:
            assert [subscriber.things for subscriber in subscribers] == [expected] * 2
            return True

        await eventually(have_objects)

    await eventually(lambda: [subscriber.syncs for subscriber in subscribers] == [1, 1])
    texts = {f"key-{number}": "one" for number in range(500)}
    async with plain(server) as js:
        bucket = await js.key_value("things")
        for key, text in texts.items():
            await bucket.put(key, value(text))
        await all_see(texts)
        server.kill()
    await server.start()
    async with plain(server) as js:
        bucket = await js.key_value("things")
        await bucket.put("key-1", value("two"))
        await bucket.delete("key-2")
        await bucket.purge("key-3")
        texts["key-1"] = "two"
        del texts["key-2"], texts["key-3"]
        await all_see(texts)
        await js.delete_key_value("things")
        await js.create_key_value(bucket="things", history=5)
        await (await js.key_value("things")).put("new", value("three"))
        await all_see({"new": "three"})
    assert [subscriber.syncs for subscriber in subscribers] == [1, 1]


async def test_a_recreated_cluster_object_is_a_delete_and_an_upsert_event(
    kube_server: KubeServer, kube_namespace: str
) -> None:
    events_seen: list[tuple[str, str, str]] = []
    path = f"/api/v1/namespaces/{kube_namespace}/configmaps"
    kind = kube("v1", "ConfigMap", namespace=kube_namespace, labels={"app": "mine"})

    async def read(events: EventStream[Manifest]) -> None:
        async for event in events:
            async with event:
                if event.kind is EventKind.SYNC:
                    continue
                assert event.key.namespace == kube_namespace
                events_seen.append((event.kind.value, event.key.name, event.object["data"]["text"]))

    async def becomes(*expected: tuple[str, str, str]) -> None:
        def has_events() -> bool:
            assert events_seen == list(expected)
            return True

        await eventually(has_events)
        events_seen.clear()

    def config(text: str) -> dict[str, object]:
        metadata = {"name": "one", "labels": {"app": "mine"}}
        return {"metadata": metadata, "data": {"text": text}}

    options = KubeOptions(kubeconfig=str(kube_server.kubeconfig()))
    async with connect_kube(options) as stores, Resource(kind, stores) as resource:
        await kube_server.call("POST", path, config("first"))
        async with resource.events() as events, asyncio.TaskGroup() as group:
            group.create_task(read(events))
            await becomes(("upsert", "one", "first"))
            store = await resource.store()
            [first] = store.list()
            assert store.get(first) == first
            await kube_server.call("PUT", f"{path}/one", config("second"))
            await becomes(("upsert", "one", "second"))
            await kube_server.call("DELETE", f"{path}/one")
            await kube_server.call("POST", path, config("third"))
            await becomes(("delete", "one", "second"), ("upsert", "one", "third"))
            resource.stop()
