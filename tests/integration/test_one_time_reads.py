"""A command that reads a bucket once fails if the server goes away and does not return."""

import io
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from natsctl.errors import StoreError
from natsctl.jetstream.backup import backup
from natsctl.jetstream.backup.archive import ArchiveEntry
from natsctl.jetstream.bucket.browse import BucketStore
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.connection.connection import connect
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.kinds import kv
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer


@pytest.fixture
async def bucket(nats_server: NatsServer) -> AsyncIterator[Bucket]:
    """Yield a bucket whose server was killed."""
    options = NatsOptions(servers=(nats_server.url,), connect_timeout_s=6.0)
    async with connect(options) as connection:
        bucket = Bucket(connection, "shops")
        await bucket.ensure(kv(bytes, bucket="shops"))
        await BucketStore(bucket).create("corner", b"1")
        nats_server.kill()
        await eventually(lambda: not connection.connected)
        yield bucket


@pytest.mark.parametrize(
    "read",
    [
        lambda bucket: BucketStore(bucket).listing(),
        backup.is_empty,
        lambda bucket: backup.verify(bucket, {"corner": (1, b"")}, lambda: None),
    ],
    ids=["list", "check that it is empty", "verify"],
)
async def test_a_read_fails_if_the_connection_does_not_return(
    bucket: Bucket, read: Callable[[Bucket], Awaitable[object]]
) -> None:
    with pytest.raises(StoreError, match="not connected to NATS at nats://"):
        await read(bucket)


async def test_a_backup_fails_if_the_connection_is_lost(
    nats_server: NatsServer, bucket: Bucket
) -> None:
    await nats_server.start()
    await bucket.connection.wait_connected()

    with pytest.raises(StoreError, match=r"the server closed the connection|not connected"):
        await backup.back_up(bucket, io.BytesIO(), step=nats_server.kill)


async def test_a_restore_fails_if_the_connection_is_lost(bucket: Bucket) -> None:
    entries = [ArchiveEntry.of(f"k{n}", n, b"x", written="", ttl="") for n in range(200)]
    with pytest.raises(StoreError, match="not connected to NATS at nats://"):
        await backup.restore(bucket, entries, overwrite=False, step=lambda: None)
