"""Resource streams survive restarts of a real nats-server and leave no consumer behind."""

import asyncio

from nats.js import JetStreamContext

from natsctl import EventKind, EventStream, Resource, connect
from tests.support.clients.plain_client import plain_client
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.stores.sample_objects import THINGS, Thing, value


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


async def has_consumers(js: JetStreamContext, count: int) -> bool:
    streams = [info.config.name or "" for info in await js.streams_info()]
    return sum([len(await js.consumers_info(name)) for name in streams]) == count


async def test_subscribers_see_equal_objects_over_restarts_and_leave_no_consumer(
    nats_server: NatsServer,
) -> None:
    tasks = len(asyncio.all_tasks())
    async with connect(nats_server.url, verify_s=1.0) as stores:
        async with (
            Resource(THINGS, stores) as resource,
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
            resource.stop()
        async with plain_client(nats_server.url) as client:
            await eventually(lambda: has_consumers(client.jetstream(), 0))
    await eventually(lambda: len(asyncio.all_tasks()) == tasks)


async def change_objects(server: NatsServer, subscribers: list[Subscriber]) -> None:
    async def all_see(expected: dict[str, str]) -> None:
        await eventually(lambda: [one.things for one in subscribers] == [expected] * 2)

    await eventually(lambda: [subscriber.syncs for subscriber in subscribers] == [1, 1])
    texts = {f"key-{number}": "one" for number in range(100)}
    async with plain_client(server.url) as client:
        bucket = await client.jetstream().key_value("things")
        for key, text in texts.items():
            await bucket.put(key, value(text))
        await all_see(texts)
        server.kill()
    await server.start()
    async with plain_client(server.url) as client:
        js = client.jetstream()
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
        await eventually(lambda: has_consumers(js, 1))
    assert [subscriber.syncs for subscriber in subscribers] == [1, 1]
