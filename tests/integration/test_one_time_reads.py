"""A command that reads a bucket once fails if the server goes away and does not return."""

from collections.abc import AsyncIterator

import pytest

from natsctl import NatsOptions, kv
from natsctl.errors import StoreError
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.store import BucketStore
from tests.support.clients.nats import connect
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


async def test_a_read_fails_if_the_connection_does_not_return(bucket: Bucket) -> None:
    with pytest.raises(StoreError, match="not connected to NATS at nats://"):
        await BucketStore(bucket).listing()
