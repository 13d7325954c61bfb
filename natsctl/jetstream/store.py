"""Stores objects in JetStream KV buckets, with compare-and-set writes and reads at the leader."""

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from natsctl.errors import (
    ConflictError,
    InvalidKeyError,
    NotFoundError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    TooLargeError,
    UsageError,
)
from natsctl.jetstream.bucket import (
    EXPECTED,
    NANOSECONDS,
    OPERATION,
    ROLLUP,
    TTL,
    Bucket,
    Message,
    header_size,
)
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.connection import connect as connected
from natsctl.jetstream.events import StreamRecorder
from natsctl.jetstream.feed import AGAIN_S, hedged
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.requests import kv_span, revision_of
from natsctl.jetstream.service import error_from
from natsctl.jetstream.watch import VERIFY_S, KvWatch
from natsctl.model.keys import KEY_RULE, check_key, matches
from natsctl.model.kinds import Kind, KvKind, kv
from natsctl.model.store import (
    UNGUARDED,
    Deleted,
    Guarded,
    Stored,
    WatchEvent,
    WriteGuard,
    listed,
)
from natsctl.telemetry.logger import get_logger
from natsctl.telemetry.outbox import sending

PAUSES_S = (0.01, 0.03, 0.1, 0.3, 1.0, 2.0)  # before a write is sent again, see `KvStore._sent`


class KvStore:
    """The `Store` of one KV kind; made by `Nats.open`."""

    def __init__(
        self,
        bucket: Bucket,
        kind: KvKind[Any],
        *,
        verify_s: float = VERIFY_S,
        guard: WriteGuard = UNGUARDED,
    ) -> None:
        self.kind: Kind[Any] = kind
        self._guard = guard
        self._bucket = bucket
        self._patterns = tuple(kind.keys.split())
        self._watch = KvWatch(bucket, self._patterns, verify_s=verify_s)

    @property
    def concerns(self) -> list[str]:
        """What the bucket deletes too early or keeps too long, as far as it was seen."""
        return self._bucket.concerns

    async def get(self, key: str) -> Stored:
        """See `Store.get`; `NotFoundError.deleted_at` is the revision of a delete marker."""
        with kv_span("get", self._bucket.name, key):
            message = await self.find(self._checked(key))
            return Stored(key, message.revision, message.value)

    async def find(self, key: str) -> Message:
        """Return the newest value of *key* as a message; raises `NotFoundError` as `get` does."""
        message = await self._bucket.last(check_key(key))
        if message.marker:
            raise NotFoundError(
                f"{self._bucket.name} has no {key}: it was deleted", deleted_at=message.revision
            )
        return message

    async def create(self, key: str, value: bytes) -> Stored:
        """See `Store.create`; a deleted key can be created again."""
        with kv_span("create", self._bucket.name, key):
            try:
                return await self._put(self._checked(key), value, 0)
            except ConflictError as conflict:
                try:
                    await self.get(key)
                except NotFoundError as deleted:
                    return await self._put(key, value, deleted.deleted_at or 0)
                raise ConflictError(f"{key} exists in {self._bucket.name}") from conflict

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        """See `Store.update`."""
        with kv_span("update", self._bucket.name, key):
            return await self._put(self._checked(key), value, revision)

    async def delete(
        self,
        key: str,
        *,
        revision: int | None = None,
        uid: str = "",  # noqa: ARG002 - a revision is of one object only
        purge: bool = False,
    ) -> int:
        """See `Store.delete`; leaves a delete marker for watches that are disconnected now."""
        if revision is None:
            try:
                revision = (await self.get(key)).revision
            except NotFoundError as missing:
                if not purge or missing.deleted_at is None:
                    raise
                revision = missing.deleted_at
        headers = {OPERATION: "PURGE", ROLLUP: "sub"} if purge else {OPERATION: "DEL"}
        ttl_s = self._bucket.marker_ttl_s(purge=purge)
        if ttl_s is not None:
            headers[TTL] = f"{ttl_s}s"
        with kv_span("purge" if purge else "delete", self._bucket.name, key):
            return await self._publish(self._checked(key), b"", revision, headers)

    async def history(self, key: str) -> list[Stored | Deleted]:
        """See `Store.history`; returns at most as many revisions as the bucket keeps."""
        return [
            message.deleted if message.marker else Stored(key, message.revision, message.value)
            for message in await self.messages(key)
        ]

    async def messages(self, key: str) -> list[Message]:
        """Return all messages that the bucket keeps of the key, oldest first."""
        messages: list[Message] = []
        self._checked(key)
        while True:
            try:
                newest = messages[-1].revision if messages else 0
                messages.append(await self._bucket.after(newest, key))
            except NotFoundError:
                return messages

    async def last_revision(self) -> int:
        """See `Sequenced.last_revision`."""
        return (await self._bucket.state()).last_seq

    async def newest_revision(self) -> int:
        """Return the revision of the newest message of this kind, or 0 if there is none."""
        return await self._bucket.newest_revision(self._patterns)

    def watch(
        self, shown: Collection[str] | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """See `Store.watch` and `KvWatch`."""
        return self._watch(shown)

    def _checked(self, key: str) -> str:
        patterns = " ".join(self._patterns)
        if not matches(patterns, check_key(key)):
            raise InvalidKeyError(f"key {key!r} does not match {patterns} of {self._bucket.name}")
        return key

    async def _put(self, key: str, value: bytes, revision: int) -> Stored:
        try:
            return Stored(key, await self._publish(key, value, revision, {}), value)
        except StoreTimeoutError as unknown:
            # the write may have been stored although its acknowledgement was lost
            try:
                stored = await hedged(partial(self.get, key), every_s=AGAIN_S)
            except NotFoundError:
                raise unknown from None
            if stored.revision > revision and stored.value == value:
                return stored
            raise

    async def _publish(self, key: str, value: bytes, revision: int, headers: dict[str, str]) -> int:
        self._bucket.check_writable(deletes=OPERATION in headers)
        connection = self._bucket.connection
        subject = connection.options.publish_prefix + self._bucket.prefix + key
        headers = {**headers, EXPECTED: str(revision)}
        if len(value) + header_size(headers) > connection.client.max_payload:
            # the server would close the connection
            raise self._too_large(key, value, "server takes: raise its max_payload")
        try:
            reply = await self._sent(partial(connection.request, subject, value, headers=headers))
            return revision_of(reply.data)
        except TooLargeError as error:
            raise self._too_large(key, value, "bucket takes: raise max_value_bytes") from error
        except ConflictError as error:
            raise ConflictError(
                f"{key} of {self._bucket.name} changed since it was read"
            ) from error

    async def _sent(self, send: Callable[[], Awaitable[Msg]]) -> Msg:
        """Send a write, again if no server has received it, and return the answer.

        No server receives it while the bucket has no leader, and shortly after its creation, which
        can be a second in a busy cluster. The guard may forbid the write before it is sent again,
        because a term may have ended.
        """
        for pause_s in PAUSES_S:
            self._guard.check(self.kind)
            try:
                return await send()
            except StoreError as error:
                if not isinstance(error.__cause__, NoRespondersError):
                    raise
                try:  # raises if the bucket does not exist, and times out during an election
                    await hedged(self._bucket.state, every_s=AGAIN_S)
                except StoreTimeoutError:
                    raise error from error.__cause__
                self._bucket.check_writable()
            await asyncio.sleep(pause_s)
        self._guard.check(self.kind)
        return await send()

    def _too_large(self, key: str, value: bytes, limit: str) -> TooLargeError:
        return TooLargeError(
            f"{key} of {self._bucket.name} has {len(value)} bytes plus headers, which is more than "
            f"the {limit}, or store less"
        )


LEASES: KvKind[bytes] = kv(bytes, bucket="natsctl_leases", history=1, replicas=None)
LASTING = ".record"  # the end of the keys whose values don't expire
EXPIRE = 2.0  # the server deletes a lease after this many times its time to live


class LeaseStore(KvStore):
    """The bucket of leases; a `Store`.

    Its watches share the connection of the requests, because the bucket is small and urgent.

    A process decides by its own clock when a lease of another process has expired. The server
    deletes the lease later, to remove a lease that no process acquires. Every write,
    including a deletion, restarts that time.

    Args:
        connection: the connection to NATS.
        ttl_s: the time to live of a lease; the server deletes it after twice that time.
        kind: a part of the bucket, or by default all of it as bytes.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        ttl_s: float,
        kind: KvKind[Any] = LEASES,
        verify_s: float = VERIFY_S,
    ) -> None:
        super().__init__(Bucket(connection, LEASES.bucket, bulk=False), kind, verify_s=verify_s)
        self._ensured = False  # whether the bucket of another domain exists
        self._expire_s = max(1, math.ceil(EXPIRE * ttl_s))  # the server's resolution is one second

    async def get(self, key: str) -> Stored:
        # without the bucket, there's no such key either
        try:
            return await super().get(key)
        except StoreMissingError as error:
            raise NotFoundError(str(error)) from error

    async def create(self, key: str, value: bytes) -> Stored:
        # creates the bucket too
        if self._bucket.connection.options.publish_prefix and not self._ensured:
            # nobody answers a write to a missing bucket of another domain
            await self._bucket.ensure(LEASES)
            self._ensured = True
        try:
            return await super().create(key, value)
        except StoreTimeoutError:
            self._ensured = False
            raise
        except StoreMissingError:
            await self._bucket.ensure(LEASES)
            return await super().create(key, value)

    async def _publish(self, key: str, value: bytes, revision: int, headers: dict[str, str]) -> int:
        if not key.endswith(LASTING):
            headers = {**headers, TTL: f"{self._expire_s}s"}
        return await super()._publish(key, value, revision, headers)


log = get_logger(__name__)

LOGGED_MAX = 3  # illegal keys in a log line
NAME_MAX = 200  # characters of their names


class BucketStore(KvStore):
    """A store for a bucket without a declaration, which also records when values were written.

    Does not create the bucket or compare its options.

    Args:
        bucket: the bucket.
        value_type: the type of values for writes: `bytes`, or `Object` if they have metadata.
        keys: the pattern of the keys to read.
        guard: permits or forbids each write.
    """

    def __init__(
        self,
        bucket: Bucket,
        value_type: type = bytes,
        *,
        keys: str = ">",
        guard: WriteGuard = UNGUARDED,
    ) -> None:
        kind: KvKind[Any] = KvKind(value_type, bucket=bucket.name, keys=keys)
        kind.name = bucket.name
        super().__init__(bucket, kind, guard=guard)
        self._times: dict[str, int] = {}
        self._dated = KvWatch(bucket, keys.split(), times=self._times)

    async def listing(self) -> list[Message]:
        """Return the newest value of every key, sorted by key."""
        illegal: dict[str, None] = {}
        values = await listed(self.read, illegal)
        if illegal:
            names = ", ".join(itertools.islice(illegal, LOGGED_MAX))
            log.warning(
                "skipped illegal keys",
                bucket=self._bucket.name,
                count=len(illegal),
                keys=f"{names[:NAME_MAX]}{', …' * (len(illegal) > LOGGED_MAX)}",
                hint=KEY_RULE,
            )
        return [self.dated(values[key]) for key in sorted(values)]

    def watch(
        self, shown: Collection[str] | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        return self._dated(shown)

    def read(self) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """Watch to read the bucket once: a connection that does not return is a `StoreError`."""
        return self._dated(forever=False)

    def dated(self, stored: Stored) -> Message:
        """Return *stored* as a message, with the time at which a watch saw it written, if any."""
        ns = self._times.get(stored.key)
        created = "" if ns is None else datetime.fromtimestamp(ns / NANOSECONDS, UTC).isoformat()
        return Message(stored.key, stored.revision, stored.value, marker=None, created=created)


async def bucket_names(connection: Connection) -> list[str]:
    """Return the names of all buckets that this user may list, sorted."""
    names = [name async for name in all_streams(connection, "STREAM.NAMES")]
    return sorted(name.removeprefix("KV_") for name in names if name.startswith("KV_"))


async def all_streams(connection: Connection, endpoint: str) -> AsyncIterator[Any]:
    """Yield what `STREAM.NAMES` or `STREAM.LIST` returns of each stream, page by page."""
    seen, total = 0, 1
    while seen < total:
        answer = await connection.api(endpoint, {"offset": seen})
        page = answer.get("streams") or []
        if not page:
            return
        for stream in page:
            yield stream
        seen += len(page)
        total = answer.get("total", 0)


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
        return LeaseStore(self.connection, ttl_s=ttl_s, kind=kind, verify_s=self._verify_s)

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[StreamRecorder]:
        """Yield a recorder that writes the controller's events to the stream `natsctl_events`."""
        recorder = StreamRecorder(self.connection, controller, self.guard)
        async with sending(recorder.outbox):
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
