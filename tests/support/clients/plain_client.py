"""NATS clients without natsctl, which wait long enough for a server on a busy machine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

PATIENCE_S = 60.0  # nats-py waits 2 s for a connection, 0.5 s for an answer and 5 s for JetStream


class PlainClient(Client):
    def jetstream(self, **options: Any) -> JetStreamContext:
        return super().jetstream(**{"timeout": PATIENCE_S, **options})

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = PATIENCE_S,  # noqa: ASYNC109 - the argument of nats-py
        old_style: bool = False,  # noqa: FBT001, FBT002 - the argument of nats-py
        headers: dict[str, str] | None = None,
    ) -> Msg:
        return await super().request(subject, payload, timeout, old_style, headers)


@asynccontextmanager
async def plain_client(url: str, **options: Any) -> AsyncIterator[PlainClient]:
    """Connect during the context, with options of nats-py."""
    client = PlainClient()
    await client.connect(url, connect_timeout=int(PATIENCE_S), **options)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def plain_jetstream(url: str, **options: Any) -> AsyncIterator[JetStreamContext]:
    """Connect during the context, for requests to JetStream."""
    async with plain_client(url, **options) as client:
        yield client.jetstream()
