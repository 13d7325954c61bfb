"""A bucket that's too large for a page of names, while some of its keys are purged."""

import asyncio

import pytest

import natsctl
from natsctl import WatchBrokenError, kv
from natsctl.jetstream.bucket import LARGE, Bucket
from natsctl.jetstream.feed import names
from natsctl.model.store import Applied, Listed
from tests.support.clients.nats_admin import Admin
from tests.support.servers.nats_server import NatsServer

pytestmark = pytest.mark.usefixtures("patient")

BUCKET = "many"
KEYS = [f"k{number:06}" for number in range(LARGE + 2_000)]
PURGED, LAST = KEYS[:1_000], KEYS[-1]


async def test_the_names_of_a_large_bucket_are_complete_while_others_are_purged(
    nats_server: NatsServer,
) -> None:
    async with Admin(nats_server.url) as admin, natsctl.connect(nats_server.url) as nats:
        await fill(admin)
        bucket = Bucket(nats.connection, BUCKET)
        kept, remaining = set(KEYS) - set(PURGED), list(PURGED)
        enough = asyncio.Event()

        async def purge() -> None:
            while not enough.is_set():
                await admin.purge(BUCKET, remaining.pop())

        async with asyncio.TaskGroup() as group:
            group.create_task(purge())
            for _ in range(3):
                before = len(remaining)
                assert kept <= await names(bucket, ">")
                assert len(remaining) < before
            enough.set()
        left = len(kept) + len(remaining)
        assert await bucket.count(("*", "none.>")) == left
        await admin.purge(BUCKET, LAST)
        assert await bucket.count(("*",)) == left - 1
        assert not (await admin.consumers()).get(f"KV_{BUCKET}")


async def test_a_watch_of_a_large_bucket_detects_a_purged_key(nats_server: NatsServer) -> None:
    shown: set[str] = set()
    async with (
        Admin(nats_server.url) as admin,
        natsctl.connect(nats_server.url, verify_s=0.5) as nats,
    ):
        await fill(admin)
        store = await nats.open(kv(bytes, bucket=BUCKET, history=1, storage="memory"))

        async def follow() -> None:
            async with store.watch() as events:
                async for event in events:
                    if isinstance(event, Applied):
                        shown.add(event.stored.key)
                    if isinstance(event, Listed):
                        await admin.purge(BUCKET, LAST)

        with pytest.raises(WatchBrokenError, match=f"^{LAST} vanished from many without a trace"):
            await follow()
    assert shown == set(KEYS)


async def fill(admin: Admin) -> None:
    await admin.create(BUCKET, max_msgs_per_subject=1, storage="memory")
    for key in KEYS[:-1]:
        await admin.write(BUCKET, key, "x")
    await admin.flush()
    await admin.put(BUCKET, LAST, "x")
