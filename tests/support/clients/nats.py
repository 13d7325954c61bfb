"""A connection of natsctl, as its users get one from `natsctl.connect`."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import natsctl
from natsctl import JetStream, NatsOptions, Stores


class Nats(Stores, JetStream, Protocol):
    """What `natsctl.connect` yields."""

    @property
    def connection(self) -> Any: ...

    @property
    def leases(self) -> Any: ...

    def recorder(self, controller: str) -> AbstractAsyncContextManager[Any]: ...


@asynccontextmanager
async def connect(
    options: NatsOptions | str | None = None, *, wait: bool = False
) -> AsyncIterator[Any]:
    """Yield the connection below the stores."""
    async with natsctl.connect(options, wait=wait) as nats:
        yield nats.connection
