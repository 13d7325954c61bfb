"""A watch counts the keys of its bucket and detects vanished keys without a new list."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from nats.aio.msg import Msg

from natsctl import connect, kv
from natsctl.core.table import Table
from natsctl.errors import WatchBrokenError
from natsctl.model.store import Listed, Store
from tests.support.clients.patient_client import PatientClient, patient_client
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

THINGS = kv(bytes, bucket="things", history=1)
VERIFY_S = 24.0


@pytest.fixture
async def admin(nats_server: NatsServer) -> AsyncIterator[PatientClient]:
    async with patient_client(nats_server.url) as client:
        yield client


async def churn(admin: PatientClient, ended: asyncio.Event) -> None:
    """Create and delete keys until *ended* is set.

    A cancellation may get lost in a request of nats-py.
    """
    number = 0
    while not ended.is_set():
        for number_of_key in range(number, number + 50):
            await admin.publish(f"$KV.things.k{number_of_key}", b"x")
        for number_of_key in range(number - 50, number):
            await admin.publish(
                f"$KV.things.k{number_of_key}", b"", headers={"KV-Operation": "DEL"}
            )
        await admin.request("$JS.API.INFO")  # waits until the server has processed the messages
        number += 50
        await asyncio.sleep(0.02)


async def follow(store: Store, listed: asyncio.Event, cache: Table[bytes] | None = None) -> None:
    """Watch the bucket and set *listed* after the list. Raises the errors of the watch.

    With *cache*, the watch compares the keys of the cache with those of the bucket.
    """
    async with store.watch(None if cache is None else cache.shown) as events:
        async for event in events:
            if cache is not None:
                list(cache.apply(event))
            if isinstance(event, Listed):
                listed.set()


@pytest.mark.parametrize("cache", [None, Table(THINGS)])
async def test_keys_under_constant_changes_are_counted_without_a_list(
    nats_server: NatsServer, admin: PatientClient, cache: Table[bytes] | None
) -> None:
    counted = listings = 0

    async def count_requests(request: Msg) -> None:
        nonlocal counted, listings
        counted += not request.data
        listings += b"subjects_filter" in request.data

    # a stall between two counts may require a list
    async with connect(nats_server.url, verify_s=3.0) as stores:
        store, listed, ended = await stores.open(THINGS), asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(follow(store, listed, cache))
            await listed.wait()
            group.create_task(churn(admin, ended))
            await admin.subscribe("$JS.API.STREAM.INFO.KV_things", cb=count_requests)
            await eventually(lambda: counted >= 8)
            assert not watching.done()
            watching.cancel()
            ended.set()
    assert listings == 0


@pytest.mark.parametrize("cache", [None, Table(THINGS)])
async def test_a_purged_key_is_detected_under_constant_changes(
    nats_server: NatsServer, admin: PatientClient, cache: Table[bytes] | None
) -> None:
    async with connect(nats_server.url, verify_s=0.2) as stores:
        store, listed, ended = await stores.open(THINGS), asyncio.Event(), asyncio.Event()
        await store.create("precious", b"x")
        churning = asyncio.create_task(churn(admin, ended))
        watching = asyncio.create_task(follow(store, listed, cache))
        await listed.wait()
        purge = b'{"filter": "$KV.things.precious"}'
        await admin.request("$JS.API.STREAM.PURGE.KV_things", purge)
        with pytest.raises(WatchBrokenError, match="precious vanished from things without a trace"):
            async with asyncio.timeout(60):
                await watching
        ended.set()
        await churning


async def purge(admin: PatientClient) -> None:
    await admin.request("$JS.API.STREAM.PURGE.KV_things", b'{"filter": "$KV.things.k1"}')


async def lower_max_msgs(admin: PatientClient) -> None:
    reply = await admin.request("$JS.API.STREAM.INFO.KV_things")
    config = {**json.loads(reply.data)["config"], "max_msgs": 3, "discard": "old"}
    await admin.request("$JS.API.STREAM.UPDATE.KV_things", json.dumps(config).encode())


@pytest.mark.parametrize("remove", [purge, lower_max_msgs])
async def test_vanished_keys_are_detected_before_the_consumer_is_checked(
    nats_server: NatsServer,
    admin: PatientClient,
    remove: Callable[[PatientClient], Awaitable[None]],
) -> None:
    clock = asyncio.get_running_loop().time
    async with connect(nats_server.url, verify_s=VERIFY_S) as stores:
        store, listed = await stores.open(THINGS), asyncio.Event()
        for number in range(5):
            await store.create(f"k{number}", b"x")
        watching = asyncio.create_task(follow(store, listed))
        await listed.wait()
        await remove(admin)
        removed = clock()
        with pytest.raises(WatchBrokenError, match="vanished from things without a trace"):
            async with asyncio.timeout(60):
                await watching
    assert clock() - removed < VERIFY_S


async def test_a_quiet_bucket_costs_one_small_request_per_count(
    nats_server: NatsServer, admin: PatientClient
) -> None:
    subjects: list[str] = []

    async def count_requests(request: Msg) -> None:
        subjects.append(request.subject.removeprefix("$JS.API."))

    async with connect(nats_server.url, verify_s=VERIFY_S) as stores:
        store, listed = await stores.open(THINGS), asyncio.Event()
        await store.create("a", b"x")
        watching = asyncio.create_task(follow(store, listed))
        await listed.wait()
        await admin.subscribe("$JS.API.>", cb=count_requests)
        await eventually(lambda: len(subjects) >= 3)
        watching.cancel()
    assert set(subjects[:3]) == {"STREAM.INFO.KV_things"}
