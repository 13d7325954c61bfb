"""Illegal keys in a bucket do not disturb its legal keys."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

import natsctl
from natsctl.core.informer import Informer
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.feed import names
from natsctl.jetstream.store import BucketStore
from natsctl.model.store import Applied, IllegalKey
from tests.support.clients.nats import Nats
from tests.support.clients.raw_nats_client import Stranger, stranger
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.stores.backends import Note, listing, note, put, take
from tests.support.stores.sample_objects import informed

KIND = natsctl.kv(Note, bucket="notes")
MARKER = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"
NAMES = {
    b"a\x0bb": r"a\x0bb",
    b"a\x0cb": r"a\x0cb",
    b"a\x00b": r"a\x00b",
    b"a\xffb": r"a\xffb",
    b"a\xfeb": r"a\xfeb",
    b"a\\xffb": r"a\\xffb",
    b"a\x1b[31mb": r"a\x1b[31mb",
    "a\u202eb".encode(): r"a\u202eb",
    "ключ".encode(): "ключ",
    b"*": "*",
    b">": ">",
    b"a*b": "a*b",
    b"_kv.a": "_kv.a",
}


@pytest.fixture
async def stranger_client(nats_server: NatsServer) -> AsyncIterator[Stranger]:
    async with stranger(nats_server.url) as stranger_client:
        yield stranger_client


async def write_illegal_keys(stranger_client: Stranger, headers: bytes | None = None) -> None:
    for name in NAMES:
        stranger_client.publish(b"$KV.notes." + name, note("hi"), headers=headers)
    await stranger_client.flush()


async def test_a_list_reports_illegal_keys_and_is_complete(
    nats: Nats, stranger_client: Stranger
) -> None:
    store = await nats.open(KIND)
    await write_illegal_keys(stranger_client)
    stored = await put(store, "a")
    async with store.watch() as events:
        _, *listed, _ = await listing(events)
        assert listed == [
            *(IllegalKey(name, revision) for revision, name in enumerate(NAMES.values(), 1)),
            Applied(stored),
        ]
        await write_illegal_keys(stranger_client, MARKER)
        deleted = await take(events, len(NAMES))
        assert deleted == [
            IllegalKey(name, revision, exists=False)
            for revision, name in enumerate(NAMES.values(), stored.revision + 1)
        ]


async def test_keys_that_only_the_server_counts_cause_no_relist_until_they_are_purged(
    nats_server: NatsServer, stranger_client: Stranger
) -> None:
    async with natsctl.connect(nats_server.url, verify_s=0.01) as nats:
        store = await nats.open(KIND)
        await write_illegal_keys(stranger_client)
        informer = Informer(store, KIND)
        async with informed(informer):
            await eventually(lambda: len(informer.table.invalid) == len(NAMES))
            for number in range(3):  # with a heartbeat of the watch between the writes
                stored = await put(store, f"a{number}")
                await informer.table.passed(stored.revision)
                await asyncio.sleep(0.6)
            assert informer.restarts == 0
            await nats.connection.api("STREAM.PURGE.KV_notes")
            await eventually(lambda: not informer.table.invalid)


async def test_lists_of_the_bucket_store_skip_illegal_keys_and_log_them(
    nats: Nats, stranger_client: Stranger, caplog: pytest.LogCaptureFixture
) -> None:
    store, bucket = await nats.open(KIND), Bucket(nats.connection, "notes")
    await write_illegal_keys(stranger_client)
    await put(store, "a")
    async with asyncio.timeout(60):
        assert await names(bucket, ">") == {"a"}
    caplog.set_level(logging.WARNING)
    (listed,) = await BucketStore(bucket).listing()
    assert (listed.key, bool(listed.created)) == ("a", True)
    (line,) = [line for line in caplog.messages if line.startswith("skipped")]
    first = r"a\x0bb, a\x0cb, a\x00b, …"
    assert line.startswith(f"skipped illegal keys bucket=notes count=13 keys={first!r} hint=")


async def test_an_illegal_key_is_logged_once_however_often_it_is_written(
    nats: Nats, stranger_client: Stranger, caplog: pytest.LogCaptureFixture
) -> None:
    store = await nats.open(KIND)
    informer = Informer(store, KIND)
    async with informed(informer):
        for _ in range(20):
            stranger_client.publish(b"$KV.notes.a\x0bb", note("hi"))
        await stranger_client.flush()
        stored = await put(store, "a")
        await informer.table.passed(stored.revision)
    (line,) = [line for line in caplog.messages if r"a\x0bb" in line]
    assert line.startswith("skipped an invalid object ")
    assert line.endswith("error='its name is not a legal key'")
