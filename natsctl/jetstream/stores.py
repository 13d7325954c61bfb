"""Opens the stores, leases and event streams of one NATS connection."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from nats.errors import NoRespondersError

from natsctl.errors import StoreError, UsageError
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.connection import connect as connected
from natsctl.jetstream.events import StreamRecorder, recording
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.service import error_from
from natsctl.jetstream.store import LEASES, KvStore, LeaseStore
from natsctl.jetstream.watch import VERIFY_S
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.store import Guarded

_READS = ("INFO", "NAMES", "LIST", "MSG.GET")  # of the JetStream API, after the type's name


class Nats(Guarded):
    """The buckets and the JetStream API of one connection; a `Stores` and a `JetStream`.

    A guard also checks requests to the JetStream API that write.
    """

    def __init__(self, connection: Connection, *, verify_s: float = VERIFY_S) -> None:
        self.connection = connection
        self._verify_s = verify_s

    async def open(self, kind: Kind[Any]) -> KvStore:
        """Return the store of *kind*; creates its bucket, or checks its options."""
        if not isinstance(kind, KvKind):
            raise UsageError(f"{kind.name} is not kept in NATS")
        bucket = Bucket(self.connection, kind.bucket)
        await bucket.ensure(kind if self.guard.may_create(kind) else kind.existing())
        return KvStore(bucket, kind, verify_s=self._verify_s, guard=self.guard)

    async def api(self, endpoint: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """See `JetStream.api`."""
        if not _reads(endpoint):
            self.guard.check(None)
        return await self.connection.api(endpoint, body)

    async def request(
        self, subject: str, body: bytes, *, headers: Mapping[str, str], timeout_s: float
    ) -> bytes:
        """See `Requester.request`; an error that a micro service reports is a `StoreError`."""
        try:
            reply = await self.connection.request(
                subject, body, headers=headers or None, timeout_s=timeout_s
            )
        except StoreError as error:
            if isinstance(error.__cause__, NoRespondersError):
                raise StoreError(f"nobody listens on {subject}: is the service running?") from error
            raise
        failure = error_from(reply.headers)
        if failure is not None:
            raise StoreError(str(failure))
        return reply.data

    def leases(self, *, ttl_s: float, kind: KvKind[Any] = LEASES) -> LeaseStore:
        """Return the store of leases with this time to live; the first write creates the bucket.

        A *kind* selects a part of the bucket.
        """
        return LeaseStore(self.connection, ttl_s=ttl_s, kind=kind)

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[StreamRecorder]:
        """Yield a recorder that writes the controller's events to the stream `natsctl_events`."""
        async with recording(self.connection, controller, self.guard) as recorder:
            yield recorder


def _reads(endpoint: str) -> bool:
    """Return whether a request to this endpoint of the JetStream API changes nothing."""
    action = endpoint.partition(".")[2] or endpoint
    return any(action == verb or action.startswith(f"{verb}.") for verb in _READS)


@asynccontextmanager
async def connect(
    options: NatsOptions | str | None = None, *, wait: bool = False, verify_s: float = VERIFY_S
) -> AsyncIterator[Nats]:
    """Connect to NATS for the duration of the context.

    Args:
        options: options, or a URL; None is the default server.
        wait: if no server is reachable, log that and retry until one is.
        verify_s: the interval in seconds at which each watch verifies its keys.

    Raises `UsageError` for a malformed option, and `ConnectError` if no server is reachable.
    """
    async with connected(options, wait=wait) as connection:
        yield Nats(connection, verify_s=verify_s)
