"""A bucket with more keys than one page of the server, while some are purged."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import natsctl
from natsctl import NatsOptions, WatchBrokenError, kv
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.feed import names
from natsctl.jetstream.store import Nats
from natsctl.model.store import Applied, Listed
from tests.support.clients.nats_admin import Admin
from tests.support.servers.nats_server import NatsServer

BUCKET = "many"
KEYS = [f"k{number:06}" for number in range(120_000)]  # a page has 100,000


@pytest.fixture
async def admin(nats_server: NatsServer) -> AsyncIterator[Admin]:
    async with Admin(nats_server.url) as admin:
        await admin.create(BUCKET, max_msgs_per_subject=1, storage="memory")
        for key in KEYS:
            await admin.write(BUCKET, key, "x")
        await admin.put(BUCKET, "last", "x")
        yield admin


@pytest.fixture
async def nats(nats_server: NatsServer) -> AsyncIterator[Nats]:
    options = NatsOptions(servers=(nats_server.url,), request_timeout_s=60.0)
    async with natsctl.connect(options, verify_s=0.5) as nats:
        yield nats


async def test_keys_of_many_pages_are_complete_while_others_are_purged(
    admin: Admin, nats: Nats
) -> None:
    kept = set(KEYS[20_000:])
    bucket = Bucket(nats.connection, BUCKET)
    enough = asyncio.Event()

    async def purge() -> None:
        for key in KEYS[:20_000]:
            if enough.is_set():
                break
            await admin.purge(BUCKET, key)

    async with asyncio.TaskGroup() as group:
        group.create_task(purge())
        for _ in range(5):
            assert kept <= await names(bucket, ">")
        enough.set()


async def test_the_names_of_a_part_are_counted(admin: Admin, nats: Nats) -> None:
    bucket = Bucket(nats.connection, BUCKET)
    await bucket.state()
    assert await bucket.count(("*", "none.>")) == len(KEYS) + 1
    await admin.purge(BUCKET, KEYS[-1])
    assert await bucket.count(("*",)) == len(KEYS)
    assert not (await admin.consumers()).get(f"KV_{BUCKET}")


async def test_a_watch_detects_a_purged_key_of_the_last_page(admin: Admin, nats: Nats) -> None:
    store = await nats.open(kv(bytes, bucket=BUCKET, history=1, storage="memory"))
    shown: set[str] = set()

    async def follow() -> None:
        async with store.watch() as events:
            async for event in events:
                if isinstance(event, Applied):
                    shown.add(event.stored.key)
                if isinstance(event, Listed):
                    await admin.purge(BUCKET, KEYS[-1])

    with pytest.raises(WatchBrokenError, match=f"^{KEYS[-1]} vanished from many without a trace"):
        await follow()
    assert shown == {*KEYS, "last"}
