"""NATS clients without natsctl, which wait long enough for a server on a busy machine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext

PATIENCE_S = 60.0  # nats-py waits 2 s for a connection and 5 s for an answer


@asynccontextmanager
async def plain_client(url: str, **options: Any) -> AsyncIterator[Client]:
    """Connect during the context, with options of nats-py."""
    client = await nats.connect(url, connect_timeout=int(PATIENCE_S), **options)
    try:
        yield client
    finally:
        await client.close()


def jetstream_of(client: Client) -> JetStreamContext:
    return client.jetstream(timeout=PATIENCE_S)


@asynccontextmanager
async def plain_jetstream(url: str, **options: Any) -> AsyncIterator[JetStreamContext]:
    """Connect during the context, for requests to JetStream."""
    async with plain_client(url, **options) as client:
        yield jetstream_of(client)
