"""Streams and consumers that objects in buckets declare, on a real nats-server."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from nats.js import JetStreamContext
from nats.js.api import ConsumerInfo, RetentionPolicy, StreamInfo
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from controllers.streams import OWNER, Consumers, Streams
from natsctl import ControllerRuntime, connect
from tests.support.clients.plain_client import plain_client
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

DAY_NS = 86_400 * 10**9


class Site:
    """The buckets and streams of a server with both controllers, used by a plain NATS client."""

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
        prefixed = {
            f"natsctl.io/{name.replace('_', '-')}": value for name, value in annotations.items()
        }

        def change(document: dict[str, Any]) -> None:
            document["spec"] = spec
            if prefixed:
                document.setdefault("metadata", {}).setdefault("annotations", {}).update(prefixed)

        await self._edit(bucket, key, change)

    async def delete(self, bucket: KeyValue, key: str) -> None:
        """Mark the object deleted, as `natsctl delete` does."""
        mark = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        await self._edit(bucket, key, lambda document: document["metadata"].update(mark))

    async def _edit(
        self, bucket: KeyValue, key: str, change: Callable[[dict[str, Any]], None]
    ) -> None:
        """Change the stored object, and retry if another client wrote it first."""
        while True:
            try:
                entry = await bucket.get(key)
                document, revision = json.loads(entry.value or b"{}"), entry.revision
            except KeyNotFoundError:
                document, revision = {}, None
            change(document)
            with suppress(KeyWrongLastSequenceError):
                await bucket.update(key, json.dumps(document).encode(), revision)
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

    async def condition(
        self, key: str, name: str = "Synced", bucket: KeyValue | None = None
    ) -> str:
        """Return the status and message of a condition, or "" if it does not exist."""
        document = await self.get(bucket or self.streams, key) or {}
        for condition in document.get("status", {}).get("conditions", ()):
            if condition["type"] == name:
                return f"{condition['status']} {condition.get('message', '')}".strip()
        return ""

    async def becomes(self, key: str, text: str, bucket: KeyValue | None = None) -> None:
        """Wait until the condition `Synced` contains the text."""

        async def contains() -> bool:
            assert text in await self.condition(key, bucket=bucket)
            return True

        await eventually(contains)


@asynccontextmanager
async def running(server: NatsServer, *controllers: Streams | Consumers) -> AsyncIterator[None]:
    """Run the controllers concurrently."""
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
    async with (
        running(nats_server, Streams(), Consumers()),
        plain_client(nats_server.url) as client,
    ):
        js = client.jetstream()
        yield Site(js, await js.key_value("streams"), await js.key_value("consumers"))


async def test_a_stream_is_created_changed_and_deleted_with_its_object(site: Site) -> None:
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

    async def is_ready() -> bool:
        return await site.condition("orders", "Ready") == "True"

    await eventually(is_ready)

    await site.delete(site.streams, "orders")
    await eventually(lambda: is_deleted(site, "orders"))
    assert await site.stream("orders") is None


async def is_deleted(site: Site, key: str, bucket: KeyValue | None = None) -> bool:
    return await site.get(bucket or site.streams, key) is None


async def test_a_refused_name_or_change_is_reported_and_other_options_are_kept(site: Site) -> None:
    await site.put("team.orders", {"config": {"subjects": ["orders.>"]}})
    await site.becomes("team.orders", "set spec.name")
    config: dict[str, Any] = {"subjects": ["orders.>"]}
    await site.put("team.orders", {"name": "orders", "config": config})
    await site.becomes("team.orders", "True")
    info = await site.js.stream_info("orders")
    await site.js.update_stream(info.config.evolve(description="by hand"))
    immutable = {"storage": "memory", "retention": "workqueue", "mirror": {"name": "other"}}
    for field, value in immutable.items():
        await site.put("team.orders", {"name": "orders", "config": {**config, field: value}})
        await site.becomes("team.orders", f"cannot change {field}")
    await site.put("team.orders", {"name": "orders", "config": {**config, "max_msgs": 10}})
    await site.becomes("team.orders", "True")

    async def changed() -> bool:
        info = await site.stream("orders")
        return info is not None and info.config.max_msgs == 10

    await eventually(changed)
    kept = (await site.js.stream_info("orders")).config
    assert (kept.description, kept.retention) == ("by hand", RetentionPolicy.LIMITS)


async def test_a_consumer_is_created_when_its_stream_exists_and_is_changed_and_deleted(
    site: Site,
) -> None:
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
    await eventually(lambda: is_deleted(site, "billing", site.consumers))
    assert await site.consumer("orders", "billing") is None


async def test_a_sync_without_a_difference_writes_nothing(
    site: Site, nats_server: NatsServer
) -> None:
    limits = {"max_msgs": 0, "max_bytes": -1, "max_age": 0, "discard": "old", "num_replicas": 1}
    await site.put("orders", {"config": {"subjects": ["orders.>"], **limits}})
    await site.put_consumer("billing", {"stream": "orders", "config": {"ack_policy": "explicit"}})
    await site.becomes("orders", "True")
    await site.becomes("billing", "True", bucket=site.consumers)

    async def ready() -> bool:
        assert await site.condition("orders", "Ready") == "True"
        assert await site.condition("billing", "Ready", site.consumers) == "True"
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
