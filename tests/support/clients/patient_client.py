"""A NATS client without natsctl that waits for a slow server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

ANSWER_S = 60.0  # nats-py waits for half a second


class PatientClient(Client):
    """A client whose requests wait for a minute."""

    def jetstream(self, **options: Any) -> JetStreamContext:
        """Return the JetStream API of the server."""
        return super().jetstream(**{"timeout": ANSWER_S, **options})

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = ANSWER_S,  # noqa: ASYNC109 - the argument of nats-py
        old_style: bool = False,  # noqa: FBT001, FBT002 - the argument of nats-py
        headers: dict[str, str] | None = None,
    ) -> Msg:
        """Send a request and return its answer."""
        return await super().request(subject, payload, timeout, old_style, headers)


@asynccontextmanager
async def patient_client(url: str) -> AsyncIterator[PatientClient]:
    """Connect to the server at *url* during the context."""
    client = PatientClient()
    await client.connect(url)
    try:
        yield client
    finally:
        await client.close()
