"""A watch creates a consumer that ends with it, and breaks if the consumer may be lost."""

import asyncio

import pytest
from nats.errors import Error as NatsError

from natsctl.errors import StoreError, WatchBrokenError
from natsctl.jetstream.feed import HEARTBEAT_S, SILENCE
from natsctl.jetstream.watch import KvWatch
from natsctl.model.store import Listed
from tests.support.stores.bucket_server import BucketServer


@pytest.fixture
async def server() -> BucketServer:
    return BucketServer()


async def follow(watch: KvWatch, listed: asyncio.Event | None = None) -> None:
    async with watch() as events:
        async for event in events:
            if listed is not None and isinstance(event, Listed):
                listed.set()


async def listed_once(server: BucketServer) -> None:
    """Open a watch, and close it after the list."""
    listed = asyncio.Event()
    watching = asyncio.create_task(follow(KvWatch(server.bucket), listed))
    await listed.wait()
    watching.cancel()
    await asyncio.wait((watching,))


async def test_a_consumer_needs_no_acknowledgement_and_ends_without_its_watch(
    server: BucketServer,
) -> None:
    await listed_once(server)
    (config,) = server.configs
    assert (config["ack_policy"], config["mem_storage"], config["num_replicas"]) == (
        "none",
        True,
        1,
    )
    assert config["inactive_threshold"] == 10_000_000_000


async def test_a_consumer_sends_heartbeats_and_waits_for_a_slow_watch(
    server: BucketServer,
) -> None:
    await listed_once(server)
    (config,) = server.configs
    assert (config["idle_heartbeat"], config["flow_control"]) == (500_000_000, True)


async def test_a_lost_connection_breaks_a_watch(server: BucketServer) -> None:
    listed = asyncio.Event()
    watching = asyncio.create_task(follow(KvWatch(server.bucket), listed))
    await listed.wait()
    for callback in server.callbacks:
        callback(StoreError("the connection is lost"))
    with pytest.raises(WatchBrokenError, match="the connection is lost"):
        await watching


async def test_a_consumer_that_sends_nothing_breaks_a_watch(server: BucketServer) -> None:
    server.silent = True
    with pytest.raises(WatchBrokenError, match="the consumer sent nothing"):
        await follow(KvWatch(server.bucket))
    assert asyncio.get_running_loop().time() <= (SILENCE + 1) * HEARTBEAT_S


async def test_a_failed_subscription_breaks_a_watch(server: BucketServer) -> None:
    server.failure = NatsError("no more subscriptions")
    with pytest.raises(WatchBrokenError, match=r"cannot subscribe to .*: no more subscriptions"):
        await follow(KvWatch(server.bucket))


async def test_a_watch_that_ended_does_not_look_at_its_connection(server: BucketServer) -> None:
    await listed_once(server)
    looks = server.looks
    await asyncio.sleep(10 * HEARTBEAT_S)
    assert (server.looks, server.callbacks) == (looks, [])
