"""A watch counts the keys of its bucket and detects vanished keys without a new list."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from nats.aio.msg import Msg

from natsctl import Stores, connect, kv
from natsctl.core.table import Table
from natsctl.errors import WatchBrokenError
from natsctl.model.store import Listed
from tests.support.clients.plain_client import PlainClient, plain_client
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

THINGS = kv(bytes, bucket="things", history=1)


@pytest.fixture
async def admin(nats_server: NatsServer) -> AsyncIterator[PlainClient]:
    async with plain_client(nats_server.url) as client:
        yield client


async def churn(admin: PlainClient, ended: asyncio.Event) -> None:
    """Create and delete keys until *ended* is set.

    A cancellation may get lost in a request of nats-py.
    """
    number, count = 0, 10
    while not ended.is_set():
        for created in range(number, number + count):
            await admin.publish(f"$KV.things.k{created}", b"x")
        for deleted in range(number - count, number):
            await admin.publish(f"$KV.things.k{deleted}", b"", headers={"KV-Operation": "DEL"})
        await admin.request("$JS.API.INFO")  # waits until the server has processed the messages
        number += count
        await asyncio.sleep(0.02)


async def follow(stores: Stores, cache: Table[bytes] | None = None) -> asyncio.Task[None]:
    """Watch the bucket in a task, which raises the errors of the watch; return after the list.

    With *cache*, the watch compares the keys of the cache with those of the bucket.
    """
    store, listed = await stores.open(THINGS), asyncio.Event()

    async def watch() -> None:
        async with store.watch(None if cache is None else cache.shown) as events:
            async for event in events:
                if cache is not None:
                    list(cache.apply(event))
                if isinstance(event, Listed):
                    listed.set()

    watching = asyncio.create_task(watch())
    await listed.wait()
    return watching


async def test_keys_under_constant_changes_are_counted_without_a_list(
    nats_server: NatsServer, admin: PlainClient
) -> None:
    requests: list[tuple[str, bytes]] = []

    async def note(request: Msg) -> None:
        requests.append((request.subject.removeprefix("$JS.API."), request.data))

    # a stall between two counts may require a list, so they are a second apart
    async with connect(nats_server.url, verify_s=6.0) as stores:
        watches = [await follow(stores), await follow(stores, Table(THINGS))]
        ended = asyncio.Event()
        churning = asyncio.create_task(churn(admin, ended))
        await admin.subscribe("$JS.API.*.*.KV_things.>", cb=note)
        await admin.subscribe("$JS.API.*.*.KV_things", cb=note)
        await eventually(lambda: requests.count(("STREAM.INFO.KV_things", b"")) >= 4)
        assert not any(watching.done() for watching in watches)
        assert not [data for subject, data in requests if "INFO" in subject and data]
        assert not [subject for subject, _ in requests if "CONSUMER" in subject]
        for watching in watches:
            watching.cancel()
        ended.set()
        await churning


async def test_a_purged_key_is_detected_under_constant_changes(
    nats_server: NatsServer, admin: PlainClient
) -> None:
    async with connect(nats_server.url, verify_s=0.2) as stores:
        await (await stores.open(THINGS)).create("precious", b"x")
        ended = asyncio.Event()
        churning = asyncio.create_task(churn(admin, ended))
        watches = [await follow(stores), await follow(stores, Table(THINGS))]
        purge = b'{"filter": "$KV.things.precious"}'
        await admin.request("$JS.API.STREAM.PURGE.KV_things", purge)
        for watching in watches:
            with pytest.raises(WatchBrokenError, match="precious vanished from things without a"):
                await asyncio.wait_for(watching, 60)
        ended.set()
        await churning


async def test_keys_that_a_lower_limit_removed_are_detected(
    nats_server: NatsServer, admin: PlainClient
) -> None:
    async with connect(nats_server.url, verify_s=0.2) as stores:
        store = await stores.open(THINGS)
        for number in range(5):
            await store.create(f"k{number}", b"x")
        watching = await follow(stores)
        reply = await admin.request("$JS.API.STREAM.INFO.KV_things")
        config = {**json.loads(reply.data)["config"], "max_msgs": 3, "discard": "old"}
        await admin.request("$JS.API.STREAM.UPDATE.KV_things", json.dumps(config).encode())
        with pytest.raises(WatchBrokenError, match="vanished from things without a trace"):
            await asyncio.wait_for(watching, 60)
