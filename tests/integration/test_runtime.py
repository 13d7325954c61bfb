"""A controller on a real nats-server, with plain nats-py clients that write its buckets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue

from natsctl import (
    Controller,
    ControllerRuntime,
    connect,
    kv,
    primary,
    secondary,
)
from tests.support.clients.bucket_keys import keys
from tests.support.clients.plain_client import plain_client
from tests.support.controllers.app_controller import App, Apps, Part
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer


@asynccontextmanager
async def running(server: NatsServer, controller: Controller) -> AsyncIterator[ControllerRuntime]:
    """Run the controller, and check at the end that no consumer is left."""
    async with connect(server.url, verify_s=1.0) as stores:
        runtime = ControllerRuntime(controller, nats=stores)
        task = asyncio.create_task(runtime.run())
        await eventually(lambda: task.done() or runtime.synced.is_set())
        try:
            yield runtime
        finally:
            runtime.stop()
            await task
    await eventually(lambda: has_no_consumer(server))


async def has_no_consumer(server: NatsServer) -> bool:
    assert await consumers(server) == []
    return True


async def consumers(server: NatsServer) -> list[str]:
    """Return the consumers of natsctl on the server."""
    async with plain(server) as js:
        streams = [info.config.name or "" for info in await js.streams_info()]
        names = [info.name for name in streams for info in await js.consumers_info(name)]
    return [name for name in names if name.startswith("natsctl")]


@asynccontextmanager
async def plain(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    async with plain_client(server.url) as client:
        yield client.jetstream()


async def put(bucket: KeyValue, key: str, document: dict[str, Any]) -> None:
    await bucket.put(key, json.dumps(document).encode())


async def get(bucket: KeyValue, key: str) -> dict[str, Any] | None:
    """Return the object, or None if the key does not exist."""
    try:
        document: dict[str, Any] = json.loads((await bucket.get(key)).value or b"")
    except (KeyNotFoundError, json.JSONDecodeError):
        return None
    return document


async def becomes(bucket: KeyValue, *expected: str) -> None:
    """Wait until the bucket has exactly these keys."""

    async def is_there() -> bool:
        assert await keys(bucket) == sorted(expected)
        return True

    await eventually(is_there)


def app(words: str = "hi", *parts: str) -> dict[str, Any]:
    return {"spec": {"text": words, "parts": parts or ["main"]}}


async def test_a_slot_of_several_prefixes_has_one_consumer(nats_server: NatsServer) -> None:
    class Western(Apps):
        apps = primary(kv(App, bucket="apps", keys=["eu.>", "us.>"]))

    async with plain(nats_server) as js, running(nats_server, Western()) as runtime:
        apps, parts = await js.key_value("apps"), await js.key_value("parts")
        for key in ("asia.shop", "eu.shop", "us.shop"):
            await put(apps, key, app())
        await becomes(parts, "eu.shop.main", "us.shop.main")
        assert runtime.status().keys == 2
        (consumer,) = await js.consumers_info("KV_apps")
        assert consumer.config.filter_subjects == ["$KV.apps.eu.>", "$KV.apps.us.>"]


async def test_a_secondary_too_large_for_its_bucket_fails_only_its_owner(
    nats_server: NatsServer,
) -> None:
    class Small(Apps):
        apps = primary(kv(App, bucket="apps"))
        parts = secondary(kv(Part, bucket="small", max_value_bytes=1000))

    async with plain(nats_server) as js, running(nats_server, Small()) as runtime:
        apps, parts = await js.key_value("apps"), await js.key_value("small")
        await put(apps, "large", app("x" * 2000))
        await put(apps, "shop", app())
        await becomes(parts, "shop.main")
        await eventually(lambda: "TooLargeError" in runtime.status().failing.get("large", ""))
