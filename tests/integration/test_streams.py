"""Streams and consumers declared in buckets, on a real nats-server."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ConsumerInfo, RetentionPolicy, StreamConfig, StreamInfo
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from controllers.streams import OWNER, Consumers, Streams
from natsctl import ControllerRuntime, connect
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

DAY_NS = 86_400 * 10**9


class Site:
    """A server on which both controllers run, as people see it."""

    def __init__(self, js: JetStreamContext, streams: KeyValue, consumers: KeyValue) -> None:
        self.js = js
        self.streams = streams
        self.consumers = consumers

    async def put(self, key: str, spec: dict[str, Any], **annotations: str) -> None:
        await self._put(self.streams, key, spec, annotations)

    async def put_consumer(self, key: str, spec: dict[str, Any]) -> None:
        await self._put(self.consumers, key, spec, {})

    async def _put(
        self, bucket: KeyValue, key: str, spec: dict[str, Any], annotations: dict[str, str]
    ) -> None:
        said = {f"natsctl.io/{name.replace('_', '-')}": at for name, at in annotations.items()}

        def change(found: dict[str, Any]) -> None:
            found["spec"] = spec
            if said:
                found.setdefault("metadata", {}).setdefault("annotations", {}).update(said)

        await self._edit(bucket, key, change)

    async def delete(self, bucket: KeyValue, key: str) -> None:
        """Mark the object deleted, as `natsctl delete` does."""
        mark = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        await self._edit(bucket, key, lambda found: found["metadata"].update(mark))

    async def _edit(
        self, bucket: KeyValue, key: str, change: Callable[[dict[str, Any]], None]
    ) -> None:
        """Change the object as it is, whoever writes it meanwhile."""
        while True:
            try:
                entry = await bucket.get(key)
                found, revision = json.loads(entry.value or b"{}"), entry.revision
            except KeyNotFoundError:
                found, revision = {}, None
            change(found)
            with suppress(KeyWrongLastSequenceError):
                await bucket.update(key, json.dumps(found).encode(), revision)
                return

    async def get(self, bucket: KeyValue, key: str) -> dict[str, Any] | None:
        try:
            return dict(json.loads((await bucket.get(key)).value or b"null") or {}) or None
        except KeyNotFoundError:
            return None

    async def stream(self, name: str) -> StreamInfo | None:
        try:
            return await self.js.stream_info(name)
        except NotFoundError:
            return None

    async def consumer(self, stream: str, name: str) -> ConsumerInfo | None:
        try:
            return await self.js.consumer_info(stream, name)
        except NotFoundError:
            return None

    async def says(self, key: str, of: str = "Synced", bucket: KeyValue | None = None) -> str:
        """Return what a condition says: its status, and its message where it has one."""
        found = await self.get(bucket or self.streams, key) or {}
        for condition in found.get("status", {}).get("conditions", ()):
            if condition["type"] == of:
                return f"{condition['status']} {condition.get('message', '')}".strip()
        return ""

    async def becomes(self, key: str, text: str, bucket: KeyValue | None = None) -> None:
        """Wait until `Synced` begins so, or has that in it."""

        async def does() -> bool:
            assert text in await self.says(key, bucket=bucket)
            return True

        await eventually(does)


@asynccontextmanager
async def ran(server: NatsServer, *controllers: Streams | Consumers) -> AsyncIterator[None]:
    """Run the controllers beside each other."""
    async with connect(server.url) as stores, asyncio.TaskGroup() as group:
        runtimes = [ControllerRuntime(controller, nats=stores) for controller in controllers]
        for runtime in runtimes:
            group.create_task(runtime.run())
            await eventually(runtime.synced.is_set)
        yield
        for runtime in runtimes:
            runtime.stop()


@pytest.fixture
async def site(nats_server: NatsServer) -> AsyncIterator[Site]:
    async with ran(nats_server, Streams(), Consumers()):
        client = await nats.connect(nats_server.url)
        js = client.jetstream()
        yield Site(js, await js.key_value("streams"), await js.key_value("consumers"))
        await client.close()


async def test_a_stream_is_made_changed_and_deleted_as_its_object_says(site: Site) -> None:
    await site.put("orders", {"config": {"subjects": ["orders.>"], "max_age": DAY_NS}})
    await site.becomes("orders", "True")
    info = await site.stream("orders")
    assert info is not None
    assert (info.config.subjects, info.config.max_age) == (["orders.>"], 86_400)
    assert info.config.metadata
    assert info.config.metadata[OWNER] == "streams/orders"

    await site.put("orders", {"config": {"subjects": ["orders.>", "returns.>"], "max_age": 0}})

    async def changed() -> bool:
        info = await site.stream("orders")
        return info is not None and info.config.subjects == ["orders.>", "returns.>"]

    await eventually(changed)
    await eventually(lambda: site.says("orders", "Ready"))
    assert await site.says("orders", "Ready") == "True"

    await site.delete(site.streams, "orders")
    await eventually(lambda: gone(site, "orders"))
    assert await site.stream("orders") is None


async def gone(site: Site, key: str, bucket: KeyValue | None = None) -> bool:
    return await site.get(bucket or site.streams, key) is None


async def test_what_the_object_does_not_say_is_left_alone(site: Site) -> None:
    await site.put("orders", {"config": {"subjects": ["orders.>"]}})
    await site.becomes("orders", "True")
    info = await site.js.stream_info("orders")
    await site.js.update_stream(info.config.evolve(description="by hand"))
    await site.put("orders", {"config": {"subjects": ["orders.>"], "max_msgs": 10}})

    async def changed() -> bool:
        info = await site.stream("orders")
        return info is not None and info.config.max_msgs == 10

    await eventually(changed)
    assert (await site.js.stream_info("orders")).config.description == "by hand"


@pytest.mark.parametrize(
    ("field", "value"),
    [("storage", "memory"), ("retention", "workqueue"), ("mirror", {"name": "other"})],
)
async def test_what_cannot_be_changed_is_refused_by_name(
    site: Site, field: str, value: object
) -> None:
    await site.put("orders", {"config": {"subjects": ["orders.>"]}})
    await site.becomes("orders", "True")
    await site.put("orders", {"config": {"subjects": ["orders.>"], field: value}})
    await site.becomes("orders", f"cannot change {field}")
    info = await site.stream("orders")
    assert info is not None
    assert info.config.retention == RetentionPolicy.LIMITS
    await site.put("orders", {"config": {"subjects": ["orders.>"]}})
    await site.becomes("orders", "True")


async def test_a_stream_of_others_is_neither_changed_nor_deleted(site: Site) -> None:
    await site.js.add_stream(StreamConfig(name="theirs", subjects=["theirs.>"]))
    await site.put("theirs", {"config": {"subjects": ["ours.>"]}})
    await site.becomes("theirs", "was not created here")
    info = await site.stream("theirs")
    assert info is not None
    assert info.config.subjects == ["theirs.>"]
    await site.streams.delete("theirs")
    await site.put("next", {"config": {"subjects": ["next.>"]}})
    await site.becomes("next", "True")
    assert await site.stream("theirs") is not None


async def test_an_adopted_stream_is_changed_and_is_left_when_its_object_goes(site: Site) -> None:
    await site.js.add_stream(StreamConfig(name="theirs", subjects=["theirs.>"]))
    await site.put("theirs", {"adopt": True, "config": {"subjects": ["ours.>"]}})
    await site.becomes("theirs", "True")
    info = await site.stream("theirs")
    assert info is not None
    assert info.config.subjects == ["ours.>"]
    await site.delete(site.streams, "theirs")
    await eventually(lambda: gone(site, "theirs"))
    assert await site.stream("theirs") is not None


async def test_a_stream_of_others_may_be_observed(site: Site) -> None:
    await site.js.add_stream(StreamConfig(name="theirs", subjects=["theirs.>"]))
    await site.put("theirs", {"config": {"subjects": ["ours.>"]}}, management_policy="observe")
    await site.becomes("theirs", "True")
    await site.delete(site.streams, "theirs")
    await eventually(lambda: gone(site, "theirs"))
    info = await site.stream("theirs")
    assert info is not None
    assert info.config.subjects == ["theirs.>"]


async def test_an_adopted_stream_goes_where_its_object_says_so(site: Site) -> None:
    await site.js.add_stream(StreamConfig(name="theirs", subjects=["theirs.>"]))
    spec = {"adopt": True, "deletionPolicy": "Delete", "config": {"subjects": ["theirs.>"]}}
    await site.put("theirs", spec)
    await site.becomes("theirs", "True")
    await site.delete(site.streams, "theirs")
    await eventually(lambda: gone(site, "theirs"))
    assert await site.stream("theirs") is None


async def test_an_orphan_keeps_its_messages(site: Site) -> None:
    await site.put("orders", {"deletionPolicy": "Orphan", "config": {"subjects": ["orders.>"]}})
    await site.becomes("orders", "True")
    await site.js.publish("orders.1", b"one")
    await site.delete(site.streams, "orders")
    await eventually(lambda: gone(site, "orders"))
    info = await site.stream("orders")
    assert info is not None
    assert info.state.messages == 1


async def test_a_stream_whose_object_was_removed_past_its_finalizer_goes_too(site: Site) -> None:
    await site.put("orders", {"config": {"subjects": ["orders.>"]}})
    await site.becomes("orders", "True")
    await site.streams.delete("orders")

    async def deleted() -> bool:
        return await site.stream("orders") is None

    await eventually(deleted)


async def test_a_paused_stream_is_left_alone(site: Site) -> None:
    await site.put("orders", {"config": {"subjects": ["orders.>"]}}, paused="true")
    await site.becomes("orders", "False")
    assert await site.stream("orders") is None
    await site.put("orders", {"config": {"subjects": ["orders.>"]}}, paused="false")
    await site.becomes("orders", "True")
    assert await site.stream("orders") is not None


async def test_a_name_that_jetstream_has_not_is_refused(site: Site) -> None:
    await site.put("team.orders", {"config": {"subjects": ["orders.>"]}})
    await site.becomes("team.orders", "set spec.name")
    await site.put("team.orders", {"name": "orders", "config": {"subjects": ["orders.>"]}})
    await site.becomes("team.orders", "True")
    assert await site.stream("orders") is not None


async def test_a_stream_cannot_be_renamed(site: Site) -> None:
    await site.put("orders", {"config": {"subjects": ["orders.>"]}})
    await site.becomes("orders", "True")
    await site.put("orders", {"name": "others", "config": {"subjects": ["orders.>"]}})
    await site.becomes("orders", "to others: put another object")
    assert await site.stream("others") is None


async def test_a_consumer_comes_with_its_stream_and_is_changed_and_deleted(site: Site) -> None:
    spec = {"stream": "orders", "config": {"filter_subject": "orders.paid", "ack_wait": 5 * 10**9}}
    await site.put_consumer("billing", spec)
    await site.becomes("billing", "stream not found", bucket=site.consumers)
    await site.put("orders", {"config": {"subjects": ["orders.>"]}})
    await site.becomes("billing", "True", bucket=site.consumers)
    info = await site.consumer("orders", "billing")
    assert info is not None
    assert info.config.durable_name == "billing"
    assert (info.config.filter_subject, info.config.ack_wait) == ("orders.paid", 5)

    spec["config"] = {"filter_subject": "orders.due", "ack_wait": 7 * 10**9}
    await site.put_consumer("billing", spec)

    async def changed() -> bool:
        info = await site.consumer("orders", "billing")
        assert info is not None
        return (info.config.filter_subject, info.config.ack_wait) == ("orders.due", 7)

    await eventually(changed)
    await site.delete(site.consumers, "billing")
    await eventually(lambda: gone(site, "billing", site.consumers))
    assert await site.consumer("orders", "billing") is None


async def test_a_consumer_cannot_move_to_another_stream(site: Site) -> None:
    for name in ("orders", "returns"):
        await site.put(name, {"config": {"subjects": [f"{name}.>"]}})
    await site.put_consumer("billing", {"stream": "orders"})
    await site.becomes("billing", "True", bucket=site.consumers)
    await site.put_consumer("billing", {"stream": "returns"})
    await site.becomes("billing", "to returns.billing: put another object", bucket=site.consumers)
    await site.delete(site.consumers, "billing")
    await eventually(lambda: gone(site, "billing", site.consumers))
    assert await site.consumer("orders", "billing") is None


async def test_what_a_consumer_cannot_change_is_refused_by_name(site: Site) -> None:
    await site.put("orders", {"config": {"subjects": ["orders.>"]}})
    await site.put_consumer("billing", {"stream": "orders", "config": {"deliver_policy": "all"}})
    await site.becomes("billing", "True", bucket=site.consumers)
    await site.put_consumer("billing", {"stream": "orders", "config": {"deliver_policy": "new"}})
    await site.becomes("billing", "cannot change deliver_policy", bucket=site.consumers)


async def test_a_consumer_of_others_is_left_alone(site: Site) -> None:
    await site.js.add_stream(StreamConfig(name="orders", subjects=["orders.>"]))
    await site.js.add_consumer("orders", ConsumerConfig(durable_name="billing"))
    await site.put_consumer("billing", {"stream": "orders", "config": {"max_deliver": 3}})
    await site.becomes("billing", "was not created here", bucket=site.consumers)
    info = await site.consumer("orders", "billing")
    assert info is not None
    assert info.config.max_deliver == -1


async def test_what_is_as_it_should_be_causes_no_write(site: Site, nats_server: NatsServer) -> None:
    limits = {"max_msgs": 0, "max_bytes": -1, "max_age": 0, "discard": "old", "num_replicas": 1}
    await site.put("orders", {"config": {"subjects": ["orders.>"], **limits}})
    await site.put_consumer("billing", {"stream": "orders", "config": {"ack_policy": "explicit"}})
    await site.becomes("orders", "True")
    await site.becomes("billing", "True", bucket=site.consumers)

    async def ready() -> bool:
        assert await site.says("orders", "Ready") == "True"
        assert await site.says("billing", "Ready", site.consumers) == "True"
        return True

    await eventually(ready)
    before = [(await bucket.status()).values for bucket in (site.streams, site.consumers)]
    controllers = Streams(), Consumers()
    async with connect(nats_server.url) as stores:
        for controller, key in zip(controllers, ("orders", "billing"), strict=True):
            runtime = ControllerRuntime(controller, nats=stores)
            async with runtime.opened():
                await runtime.complete()
                await controller.start()
                assert await runtime.sync(key) == 60
    after = [(await bucket.status()).values for bucket in (site.streams, site.consumers)]
    assert after == before
