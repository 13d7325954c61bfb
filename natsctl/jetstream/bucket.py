"""Creates, configures and reads the stream of a JetStream KV bucket."""

import asyncio
import base64
import math
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from natsctl.errors import (
    NotFoundError,
    StoreDiffersError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    UsageError,
)
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.reader import parse_headers
from natsctl.model.keys import legal, matches
from natsctl.model.kinds import KvKind
from natsctl.model.store import Deleted
from natsctl.slices import in_slices
from natsctl.telemetry.logger import get_logger

OPERATION: Final = "KV-Operation"
MARKER_REASON: Final = "Nats-Marker-Reason"
EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
ROLLUP: Final = "Nats-Rollup"
TTL: Final = "Nats-TTL"
LAST_CONSUMER: Final = "Nats-Last-Consumer"
STALLED: Final = "Nats-Consumer-Stalled"

_BUCKET = re.compile(r"[a-zA-Z0-9_-]+\Z")
_TOKENS_PLAIN = 9


class Marker(Enum):
    """The kind of a delete marker."""

    DELETED = "deleted"
    PURGED = "purged"


def stream_of(bucket: str) -> str:
    """Return the name of the bucket's stream; raises `UsageError` for an illegal bucket name."""
    if not _BUCKET.match(bucket):
        raise UsageError(
            f"bucket {bucket!r}: a bucket's name has only letters, digits, '_' and '-'"
        )
    return f"KV_{bucket}"


def prefix_of(bucket: str) -> str:
    """Return the part of the bucket's subjects that precedes the key."""
    return f"$KV.{bucket}."


def position(reply: bytes) -> tuple[int, int, int]:
    """Return a message's sequences in the stream and for the consumer, and when it was stored.

    That is nanoseconds since 1970. All are in the reply subject, which has 9 tokens, or 11 or 12
    with a domain.

    Source: the JetStream acknowledgement subject, ADR-15 of nats-architecture-and-design.
    """
    tokens = reply.split(b".")
    first = 5 if len(tokens) == _TOKENS_PLAIN else 7
    return int(tokens[first]), int(tokens[first + 1]), int(tokens[first + 2])


def marker(headers: Mapping[str, str] | None) -> Marker | None:
    """Return the kind of delete marker that has these headers, or None for a value.

    A client writes `KV-Operation: DEL` or `PURGE`. The server writes a marker if a limit or a purge
    removes the last value of a key.
    """
    if not headers:
        return None
    if headers.get(OPERATION) == "PURGE" or headers.get(MARKER_REASON) == "Purge":
        return Marker.PURGED
    deleted = headers.get(OPERATION) == "DEL" or MARKER_REASON in headers
    return Marker.DELETED if deleted else None


def header_size(headers: Mapping[str, str]) -> int:
    """Return the size of these headers in a message in bytes; server limits include it."""
    lines = (f"{name}: {value}\r\n" for name, value in headers.items())
    return len("NATS/1.0\r\n") + sum(map(len, lines)) + len("\r\n")


_FUNCTION = re.compile(r"\{\{|\$\d")  # of a subject transform, such as {{partition(3,1)}} or $1
_TOKENS = 2  # in the prefix of a bucket: `$KV` and the bucket's name


class Layout(msgspec.Struct, frozen=True):
    """The layout of a bucket's stream.

    Attributes:
        prefix: the part of the stream's subjects that precedes each key.
        origin: the stream that this one mirrors; empty if the stream is not a mirror.
        history: the number of revisions per key; 0 or less keeps all.
        expiring: whether a single message may have a time to live.
        settled: whether *prefix* is final.
        alone: whether the stream is set up to have nothing but keys; older messages may differ.
    """

    prefix: str
    origin: str = ""
    history: int = 0
    expiring: bool = False
    settled: bool = True
    alone: bool = True


def layout_of(bucket: str, config: Mapping[str, Any]) -> Layout:
    """Return the layout of a stream with this configuration.

    Raises `StoreDiffersError` if the keys have several prefixes, because some would be missing, or
    if a function such as `partition` or a transform of the stream itself makes other keys of them.
    """
    mirror, sources = config.get("mirror") or {}, config.get("sources") or ()
    own = config.get("subject_transform") or {}
    for upstream in (mirror, *sources, {"subject_transforms": [own]}):
        for transform in upstream.get("subject_transforms") or ():
            if _FUNCTION.search(transform.get("dest") or ""):
                raise StoreDiffersError(_function_error(bucket, transform["dest"]))
    own_prefix = prefix_of(bucket)
    prefixes = set(_prefixes(mirror)) if mirror else {own_prefix}
    if not mirror and own.get("dest") and own["dest"] != own.get("src"):
        raise StoreDiffersError(_function_error(bucket, own["dest"]))
    for source in () if mirror else sources:
        for prefix in _prefixes(source):
            if prefix != own_prefix:
                raise StoreDiffersError(
                    f"bucket {bucket} takes messages of {source['name']} under {prefix}>, so its "
                    f"keys would be missing: add a subject transform from {prefix}> to "
                    f"{own_prefix}> to that source with `nats stream edit {stream_of(bucket)}`, or "
                    f"declare bucket {bucket_in(source['name'])}"
                )
    if len(prefixes) > 1:
        subjects = " and ".join(sorted(prefixes))
        raise StoreDiffersError(
            f"bucket {bucket} mirrors {mirror['name']} under several subjects, {subjects}: "
            "natsctl reads one subject prefix per bucket; mirror it without renaming subjects"
        )
    return Layout(
        prefixes.pop(),
        mirror.get("name", ""),
        config.get("max_msgs_per_subject", -1),
        bool(config.get("allow_msg_ttl")),
        # the origin may be a mirror too, with the subjects of the stream that it mirrors
        settled=not mirror or bool(mirror.get("subject_transforms")),
        alone=(config.get("subjects") or [f"{own_prefix}>"]) == [f"{own_prefix}>"],
    )


def prefix_in(subject: str) -> str:
    """Return the prefix in the subject of a key."""
    return "".join(f"{token}." for token in subject.split(".")[:_TOKENS])


def bucket_in(stream: str) -> str:
    """Return the name of the bucket that this stream holds."""
    return stream.removeprefix("KV_")


def _prefixes(upstream: Mapping[str, Any]) -> Iterator[str]:
    transforms = upstream.get("subject_transforms") or ()
    for transform in transforms:
        yield prefix_in(transform.get("dest") or transform.get("src") or "")
    if not transforms:
        yield prefix_of(bucket_in(upstream["name"]))


def _function_error(bucket: str, subject: str) -> str:
    return (
        f"bucket {bucket} renames its keys to {subject}, so they differ from those that were "
        "written: store or mirror them without functions and transforms"
    )


log = get_logger(__name__)

NANOSECONDS = 1_000_000_000
MARKER_TTL_S = 30 * 24 * 3600  # the time to live of the server's delete markers
# With more than one revision per key, the server raises each shorter time to live that another
# client gives a message to that of its own markers.
MARKER_TTL_MIN_S = 1
SEEN_S = 60.0  # a marker that lives shorter may be missed by a watch
FULL = 0.9  # of the bytes of a bucket that evicts its oldest messages
READ = 0.4  # of the time limit of requests
CREATE_S = 10.0  # the least time limit for a consumer: the server may look at every key for it
UNUSED_S = 10.0  # the server deletes a consumer without a subscriber after this time
ELECTION_S = 20.0  # the deadline of a stream's leader election
ELECTION_PAUSE_S = 0.1  # between two requests during an election
BEYOND = 1 << 40  # an offset in a list of names
LARGE = 10_000  # keys from which a list of names stops the bucket for too long
READS = 32  # concurrent reads of messages
REPLICAS = 3  # of a new bucket in a cluster
HISTORY = 5  # of a new bucket
DUPLICATES_S = 120  # the server's window for duplicate message ids; at most the bucket's TTL


class Message(msgspec.Struct, frozen=True):
    """A stored message: a value, or a delete marker.

    `created` is when the server stored it (RFC 3339).
    """

    key: str
    revision: int
    value: bytes
    marker: Marker | None
    created: str

    @property
    def deleted(self) -> Deleted:
        return Deleted(self.key, self.revision, self.marker is Marker.PURGED)


class StreamState(msgspec.Struct, frozen=True):
    """The state of a stream.

    `created` identifies the stream, and `subjects` counts its keys, deleted ones included.
    `forgets` is true if values expire without a delete marker, `reverts` if the deletion of a
    message can restore an older one. `prefix` precedes each key.
    """

    created: str
    last_seq: int
    subjects: int
    forgets: bool = False
    reverts: bool = False
    prefix: str = ""


class Bucket:
    """Reads and administers one bucket. Every read asks the stream's leader.

    The watches of a *bulk* bucket have a connection of their own, which does not delay requests.
    """

    def __init__(self, connection: Connection, name: str, *, bulk: bool = True) -> None:
        self.connection = connection
        self._bulk = bulk
        self._subjects = 0  # the number of keys at the last look, with delete markers
        self.concerns: list[str] = []  # at the last look, with advice
        self.full = ""  # how full the bucket was at the last look, if it evicts its oldest messages
        self.evicted = False  # whether a key was lost that way; cleared when it is not full
        self._created = ""  # the stream whose messages have the prefix that was found
        self._found_prefix = ""
        self.name = name
        self.stream = stream_of(name)
        self.layout = Layout(prefix_of(name))

    @property
    def prefix(self) -> str:
        return self.layout.prefix

    @property
    def watched_over(self) -> Connection:
        """The connection on which the watches of the bucket receive their messages."""
        return self.connection.watches if self._bulk else self.connection

    async def ensure(self, kind: KvKind[Any]) -> None:
        """Create the bucket as *kind* declares, if it does not exist.

        An existing bucket may have any value for an option that *kind* does not set. Raises
        `StoreDiffersError` if an option that is set differs. Retries for `ELECTION_S` while the
        cluster has no leader, or no server for a replica.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + ELECTION_S
        while True:
            try:
                info = await self._found_or_created(kind)
                break
            except StoreTimeoutError as error:
                if clock() >= deadline:
                    raise
                log.warning("bucket does not answer, retrying", bucket=self.name, error=error)
            await asyncio.sleep(ELECTION_PAUSE_S)
        difference = self.difference(kind, info["config"])
        if difference is not None:
            raise StoreDiffersError(difference)
        if not (info["config"].get("deny_delete") or self.layout.origin):
            log.warning(
                "bucket permits the deletion of single messages",
                bucket=self.name,
                reason="a deletion can restore an older revision of a key without an event",
                hint="create the bucket with `nats kv add`",
            )

    async def _found_or_created(self, kind: KvKind[Any]) -> dict[str, Any]:
        try:
            return await self.info()
        except StoreMissingError:
            if not kind.create:
                raise
        try:
            info = await create_stream(self.connection, self._config(kind), replicas=kind.replicas)
        except StoreError as error:
            try:  # another client may have just created it
                info = await self._read("STREAM.INFO")
            except StoreMissingError:
                raise error from None
        return await self._with_layout(info)

    async def state(self) -> StreamState:
        info = await self.info()
        state, config = info["state"], info["config"]
        return StreamState(
            info["created"],
            state["last_seq"],
            state.get("num_subjects", 0),
            forgets=bool(config.get("max_age"))
            and config.get("subject_delete_marker_ttl", 0) < SEEN_S * NANOSECONDS,
            reverts=not (
                config.get("deny_delete")
                or config.get("max_msgs_per_subject") == 1
                or self.layout.origin
            ),
            prefix=self.prefix,
        )

    async def info(self) -> dict[str, Any]:
        """Return the server's STREAM.INFO, and update the bucket's layout from it.

        Raises `StoreDiffersError` if the bucket's keys cannot all be read.
        """
        return await self._with_layout(await self._read("STREAM.INFO"))

    async def _with_layout(self, info: dict[str, Any]) -> dict[str, Any]:
        config = info["config"]
        self._subjects = info["state"].get("num_subjects", 0)
        self.full = full(info)
        found = () if config.get("mirror") else concerns_of(info)
        self.concerns = [f"bucket {self.name}: {text}: {advice}" for text, advice in found]
        self.evicted = self.evicted and bool(self.full)
        if info["created"] != self._created:
            self._created, self._found_prefix = info["created"], ""
        layout = layout_of(self.name, config)
        if not layout.settled and info["state"].get("messages"):
            if not self._found_prefix:
                with suppress(NotFoundError):
                    first = await self._read_raw({"seq": 1, "next_by_subj": ">"}, "message")
                    self._found_prefix = prefix_in(first["subject"])
            if self._found_prefix:
                layout = replace(layout, prefix=self._found_prefix, settled=True)
        self.layout = layout
        return info

    def marker_ttl_s(self, *, purge: bool) -> int | None:
        """Return the time to live of a delete marker in seconds; None if it must not expire.

        If a marker expires, the server shows the previous revision again. So a marker expires only
        if the bucket keeps no other revision of the key: after a purge, or with history 1. Even
        then a file store that's read after a crash may show a revision that the limit of the
        history had removed: it notes no such removal (nats-server 2.11 to 2.15, issue 8505).
        """
        ttl_s = math.ceil(self.connection.options.marker_ttl_s)
        only_revision = purge or self.layout.history == 1
        return ttl_s if ttl_s and only_revision and self.layout.expiring else None

    def check_writable(self, *, deletes: bool = False) -> None:
        """Raise `StoreError` if the bucket is a mirror, or would lose another key for a value."""
        if self.evicted and not deletes:
            raise StoreError(
                f"bucket {self.name} is full ({self.full}) and deletes its oldest keys for new "
                f"values: raise its limits, and run `nats stream edit {self.stream} --discard new`"
            )
        if self.layout.origin:
            origin = bucket_in(self.layout.origin)
            raise StoreError(
                f"bucket {self.name} is a read-only mirror of {origin}: write to {origin}"
            )

    async def page_of_keys(self, pattern: str) -> set[str] | None:
        """Return every legal key that has a message; None if there are more than in one page.

        A key may have a delete marker only. The server computes each page from all names: for a
        million it takes 1.9 s of processor time, in which nobody can write. See `names`.
        """
        query: dict[str, object] = {"subjects_filter": self.prefix + pattern}
        info = await self._read("STREAM.INFO", query)
        keys, skipped = set[str](), len(self.prefix)

        def add(subject: str) -> None:
            name = subject[skipped:]
            if legal(name):
                keys.add(name)

        await in_slices(info["state"].get("subjects") or {}, add)
        return None if info.get("total", 0) > info.get("limit", 0) else keys

    async def last(self, key: str) -> Message:
        return await self._message({"last_by_subj": self.prefix + key}, key)

    async def newest_revision(self, patterns: Sequence[str] = (">",), *, seen: int = 0) -> int:
        """Return the revision of the newest message that matches, 0 if there is none.

        This is usually the stream's last message, or the newest that was *seen*, which the server
        finds at once. To find the last message of a pattern, it looks at every key.
        """
        last_seq = (await self.state()).last_seq
        if not last_seq:
            return 0
        if await self._has(last_seq, patterns):
            return last_seq
        if seen and await self._has(seen, patterns):
            for pattern in patterns:
                with suppress(NotFoundError):
                    await self.after(seen, pattern)
                    break
            else:
                return seen
        newest = 0
        for pattern in patterns:
            with suppress(NotFoundError):
                newest = max(newest, (await self.last(pattern)).revision)
        return newest

    async def _has(self, revision: int, patterns: Sequence[str]) -> bool:
        with suppress(NotFoundError):
            subject: str = (await self._read_raw({"seq": revision}, ">"))["subject"]
            if subject.startswith(self.prefix):
                key = subject[len(self.prefix) :]
                return any(matches(pattern, key) for pattern in patterns)
        return False

    async def count(self, patterns: Sequence[str]) -> int:
        """Return the number of names that match.

        By a page of names that begins after the last, or by what a consumer of a large bucket would
        send, see `page_of_keys`.
        """
        if self._subjects > LARGE:
            name = f"natsctl-{secrets.token_hex(8)}"
            subjects = (self.prefix + pattern for pattern in patterns)
            consumer = await create_consumer(self.connection, self.stream, name, *subjects)
            with suppress(StoreError):
                await self.connection.api(f"CONSUMER.DELETE.{self.stream}.{name}")
            return int(consumer["num_pending"])
        total = 0
        for pattern in patterns:
            query = {"subjects_filter": self.prefix + pattern, "offset": BEYOND}
            total += (await self._read("STREAM.INFO", query)).get("total", 0)
        return total

    async def newest(self, keys: Iterable[str]) -> list[Message]:
        """Return the newest message of each key that has one, in no particular order."""
        remaining, messages = iter(keys), list[Message]()

        async def read() -> None:
            for key in remaining:
                with suppress(NotFoundError):
                    messages.append(await self.last(key))

        reads = await asyncio.gather(*(read() for _ in range(READS)), return_exceptions=True)
        for failure in filter(None, reads):
            raise failure
        return messages

    async def after(self, revision: int, key: str) -> Message:
        query = {"seq": revision + 1, "next_by_subj": self.prefix + key}
        return await self._message(query, key)

    async def _message(self, query: dict[str, object], key: str) -> Message:
        raw = await self._read_raw(query, key)
        headers = parse_headers(base64.b64decode(raw.get("hdrs", "")))
        return Message(
            key=raw["subject"][len(self.prefix) :],
            revision=raw["seq"],
            value=base64.b64decode(raw.get("data", "")),
            marker=marker(headers),
            created=raw.get("time", ""),
        )

    async def _read_raw(self, query: dict[str, object], key: str) -> dict[str, Any]:
        """Read a message at the leader; *key* names it in errors."""
        try:
            message: dict[str, Any] = (await self._read("STREAM.MSG.GET", query))["message"]
        except StoreMissingError:
            raise
        except NotFoundError as error:
            raise NotFoundError(f"{self.name} has no {key}") from error
        return message

    async def _read(self, verb: str, query: dict[str, object] | None = None) -> dict[str, Any]:
        """Read with a shorter deadline than a write has: asking again changes nothing.

        A stream without a leader doesn't answer, and the next leader never saw the request.
        """
        timeout_s = READ * self.connection.options.request_timeout_s
        try:
            return await self.connection.api(f"{verb}.{self.stream}", query, timeout_s=timeout_s)
        except StoreMissingError as error:
            raise StoreMissingError(
                f"bucket {self.name} does not exist: create it with `nats kv add {self.name}`, "
                "or start a controller that declares it"
            ) from error

    def _config(self, kind: KvKind[Any]) -> dict[str, object]:
        age = int((kind.ttl_s or 0) * NANOSECONDS)
        window = DUPLICATES_S * NANOSECONDS
        history = kind.history or (1 if age else HISTORY)  # values expire with all their revisions
        config: dict[str, object] = {
            "name": self.stream,
            "subjects": [f"{self.prefix}>"],
            "max_msgs_per_subject": history,
            "max_bytes": -1,
            "max_age": age,
            "max_msg_size": -1 if kind.max_value_bytes is None else kind.max_value_bytes,
            "storage": kind.storage or "file",
            "num_replicas": kind.replicas,
            "discard": "new",
            "duplicate_window": min(window, age) if age else window,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
            "allow_msg_ttl": True,
        }
        if age:
            ttl_s = math.ceil(self.connection.options.marker_ttl_s or MARKER_TTL_S)
            marker_ttl_s = ttl_s if history == 1 else MARKER_TTL_MIN_S
            config["subject_delete_marker_ttl"] = marker_ttl_s * NANOSECONDS
        return config

    def difference(self, kind: KvKind[Any], config: Mapping[str, Any]) -> str | None:
        """Return how *config* differs from the options that *kind* sets, or None."""
        declared = self._config(kind)
        for option, field in _DECLARED.items():
            actual = config.get(field, 0)
            if getattr(kind, option) is not None and actual != declared[field]:
                return (
                    f"bucket {self.name} exists with {option} {_option_text(option, actual)}, "
                    f"but {_option_text(option, declared[field])} is declared: change the "
                    f"declaration, or the bucket with `nats stream edit {self.stream}`"
                )
        return None


def concerns_of(info: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a bucket deletes too early or keeps too long, each with advice."""
    config, fullness = info["config"], full(info)
    edit, history = f"nats stream edit {config['name']}", config.get("max_msgs_per_subject", -1)
    marker_ttl_s = config.get("subject_delete_marker_ttl", 0) / NANOSECONDS
    limits = [
        f"{config[limit]:,} {unit}"
        for limit, unit in (("max_msgs", "messages"), ("max_bytes", "bytes"))
        if config.get(limit, -1) > 0
    ]
    if limits and config.get("discard", "old") != "new":
        now = f"it is full now ({fullness})" if fullness else "once it is full"
        yield (
            f"it is limited to {' and '.join(limits)}, and {now} each write deletes the oldest key",
            f"{edit} --discard new, and raise its limits",
        )
    if history != 1 and config.get("allow_msg_ttl") and marker_ttl_s > MARKER_TTL_MIN_S:
        yield (
            (
                f"the server raises each time to live below {marker_ttl_s:g} s that a client gives "
                "a value to that of its own delete markers"
            ),
            f"{edit} --subject-del-markers-ttl {MARKER_TTL_MIN_S}s",
        )
    if config.get("max_age") and not marker_ttl_s:
        lasting = "720h" if history == 1 else f"{MARKER_TTL_MIN_S}s"
        yield (
            (
                f"values expire after {config['max_age'] / NANOSECONDS:g} s without a delete "
                "marker, so each expiry is noticed late and causes a relist"
            ),
            f"{edit} --subject-del-markers-ttl {lasting}",
        )


def full(info: Mapping[str, Any]) -> str:
    """Return how full a bucket is that evicts its oldest messages; empty if it has room."""
    config, state = info["config"], info["state"]
    if config.get("discard", "old") == "new":
        return ""
    limits = (
        (state.get("messages", 0), config.get("max_msgs", -1), 1.0, "messages"),
        (state.get("bytes", 0), config.get("max_bytes", -1), FULL, "bytes"),
    )
    texts = (
        f"{count:,} of {limit:,} {unit}"
        for count, limit, share, unit in limits
        if limit > 0 and count >= share * limit
    )
    return ", ".join(texts)


_DECLARED = {
    "history": "max_msgs_per_subject",
    "ttl_s": "max_age",
    "replicas": "num_replicas",
    "storage": "storage",
    "max_value_bytes": "max_msg_size",
}


def _option_text(option: str, value: Any) -> str:
    if (option, value) in {("ttl_s", 0), ("max_value_bytes", -1)}:
        return "None"
    return f"{value / NANOSECONDS:g}" if option == "ttl_s" else str(value)


async def create_stream(
    connection: Connection, config: Mapping[str, object], *, replicas: int | None
) -> dict[str, Any]:
    """Create a stream; without *replicas*, it has three in a cluster and one on a single server."""
    endpoint = f"STREAM.CREATE.{config['name']}"
    if replicas is None:
        try:
            return await connection.api(endpoint, {**config, "num_replicas": REPLICAS})
        except StoreTimeoutError:
            raise
        except StoreError:
            replicas = 1  # a single server rejects more
    return await connection.api(endpoint, {**config, "num_replicas": replicas})


async def create_consumer(
    connection: Connection, stream: str, name: str, *subjects: str, **options: object
) -> dict[str, Any]:
    """Create a consumer of the newest message of every key, unless *options* differ."""
    config: dict[str, object] = {
        "name": name,
        "deliver_policy": "last_per_subject",
        "ack_policy": "none",
        "replay_policy": "instant",
        "inactive_threshold": int(UNUSED_S * NANOSECONDS),
        "mem_storage": True,
        "num_replicas": 1,
        **options,
    }
    endpoint = f"CONSUMER.CREATE.{stream}.{name}"
    if len(subjects) == 1:  # so that permissions may limit the subject
        config["filter_subject"] = subjects[0]
        endpoint += f".{subjects[0]}"
    else:
        config["filter_subjects"] = subjects
    body = {"stream_name": stream, "config": config, "action": "create"}
    timeout_s = max(CREATE_S, connection.options.request_timeout_s)
    return await connection.api(endpoint, body, timeout_s=timeout_s)
