"""A JetStream KV bucket as a stream: made as declared, asked about, never guessed at."""

import asyncio
import base64
import logging
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from natsctl.errors import (
    NotFoundError,
    StoreDiffersError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
)
from natsctl.jetstream.bucket.codec import Marker, marker, prefix_of, stream_of
from natsctl.jetstream.bucket.layout import Layout, bucket_in, layout_of, prefix_in
from natsctl.jetstream.connection.connection import Connection
from natsctl.jetstream.connection.headers import parse_headers
from natsctl.model.keys import legal
from natsctl.model.kinds import KvKind
from natsctl.model.store import Deleted

log = logging.getLogger(__name__)

NANOSECONDS = 1_000_000_000
MARKER_TTL_S = 30 * 24 * 3600  # how long the server's own delete markers stay
ANSWER_S = 2.0  # how long a leader has to answer; while there is none, nobody does
ELECTION_S = 20.0  # within which there is one again
OVERLAP = 1000  # keys that two pages of a hundred thousand have in common
READS = 32  # messages that are asked for at once
REPLICAS = 3  # of a new bucket in a cluster
HISTORY = 5  # of a new bucket
DUPLICATES_S = 120  # the server's window for repeated message ids; no longer than the TTL


class Message(msgspec.Struct, frozen=True):
    """One stored message: a value, or the marker of a deletion."""

    key: str
    revision: int
    value: bytes
    marker: Marker | None
    created: str

    @property
    def deleted(self) -> Deleted:
        """What the marker says."""
        return Deleted(self.key, self.revision, self.marker is Marker.PURGED)


class StreamState(msgspec.Struct, frozen=True):
    """Which stream this is, how far it has come, and how many keys it has, deleted ones too.

    `forgets` is true if values expire and leave no delete marker. `prefix` stands before its keys.
    """

    created: str
    last_seq: int
    subjects: int
    forgets: bool = False
    prefix: str = ""


class Bucket:
    """Reads and administers one bucket, always at the stream's leader."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name
        self.stream = stream_of(name)
        self.layout = Layout(prefix_of(name))

    @property
    def prefix(self) -> str:
        """What stands before each key in the stream's subjects."""
        return self.layout.prefix

    async def ensure(self, kind: KvKind[Any]) -> None:
        """Create the bucket as *kind* declares, if it does not exist.

        An existing bucket may have any value for an option that *kind* does not give; raises
        `StoreDiffersError` if an option that is given differs. While a cluster has no leader, the
        request is repeated for `ELECTION_S`.
        """
        info = await self._found_in_the_end(kind)
        different = self.difference(kind, info["config"])
        if different is not None:
            raise StoreDiffersError(different)
        if not (info["config"].get("deny_delete") or self.layout.origin):
            log.warning(
                "%s lets single messages be deleted. Where that brings an older revision of a key "
                "back, nobody who watches is told: make the bucket with `nats kv add`",
                self.stream,
            )

    async def state(self) -> StreamState:
        """Return the stream's identity, last sequence and size."""
        info = await self.info()
        state, config = info["state"], info["config"]
        return StreamState(
            info["created"],
            state["last_seq"],
            state.get("num_subjects", 0),
            forgets=bool(config.get("max_age")) and not config.get("subject_delete_marker_ttl"),
            prefix=self.prefix,
        )

    async def info(self) -> dict[str, Any]:
        """Return what the server reports of the stream, and learn the bucket's layout from it.

        Raises `StoreDiffersError` if the bucket's keys cannot all be read.
        """
        return await self._learnt(await self._info(timeout_s=ANSWER_S))

    async def _learnt(self, info: dict[str, Any]) -> dict[str, Any]:
        layout = layout_of(self.name, info["config"])
        if not layout.settled and info["state"].get("messages"):
            layout = await self._settled(layout)
        self.layout = layout
        return info

    def marker_ttl_s(self, *, purge: bool) -> int | None:
        """Return how long the marker of a deletion may stay; None if it must not expire.

        If a marker expires, the server shows the revision before it again. So a marker expires
        only if it is all that the bucket keeps of its key: after a purge, or with history 1.
        """
        ttl_s = math.ceil(self.connection.marker_ttl_s)
        alone = purge or self.layout.history == 1
        return ttl_s if ttl_s and alone and self.layout.expiring else None

    def check_writable(self) -> None:
        """Raise `StoreError` if the bucket is a mirror, which nobody can write."""
        if self.layout.origin:
            origin = bucket_in(self.layout.origin)
            raise StoreError(
                f"bucket {self.name} is a mirror of {origin} and is only read: write to {origin}"
            )

    async def _settled(self, layout: Layout) -> Layout:
        """Return the layout with the subjects that a mirror's messages have."""
        if self.layout.settled and self.layout.origin == layout.origin:
            return replace(layout, prefix=self.prefix, settled=True)
        query: dict[str, object] = {"last_by_subj": ">"}
        endpoint = f"STREAM.MSG.GET.{self.stream}"
        try:
            reply = await self.connection.api(endpoint, query, timeout_s=ANSWER_S)
        except NotFoundError:
            return layout
        return replace(layout, prefix=prefix_in(reply["message"]["subject"]), settled=True)

    async def keys(self, pattern: str = ">") -> set[str]:
        """Return every legal key with a message, deleted ones with their marker too.

        The server lists names in order, in pages. A key that goes between two pages moves the rest
        forward, so the pages overlap; if they do not, the listing starts again. Names that are not
        UTF-8 may look the same in a page, which then has fewer names than its limit.
        """
        found, offset = set[str](), 0
        while True:
            query = {"subjects_filter": self.prefix + pattern, "offset": offset}
            info = await self._info(query)
            page = info["state"].get("subjects") or {}
            if offset and found.isdisjoint(page):
                found, offset = set(), 0
                continue
            found.update(page)
            offset += max(len(page), info.get("limit", 0))
            if offset >= info.get("total", 0):
                names = (subject[len(self.prefix) :] for subject in found)
                return {name for name in names if legal(name)}
            offset -= OVERLAP

    async def last(self, key: str) -> Message:
        """Return the newest message of *key* (or matching it); raises `NotFoundError`."""
        return await self._message({"last_by_subj": self.prefix + key}, key)

    async def newest(self, keys: Iterable[str]) -> list[Message]:
        """Return the newest message of each of these keys that has one, in no order."""
        remaining, found = iter(keys), list[Message]()

        async def read() -> None:
            for key in remaining:
                with suppress(NotFoundError):
                    found.append(await self.last(key))

        reads = await asyncio.gather(*(read() for _ in range(READS)), return_exceptions=True)
        for failure in filter(None, reads):
            raise failure
        return found

    async def after(self, revision: int, key: str) -> Message:
        """Return the first message of *key* after *revision*; raises `NotFoundError`."""
        query = {"seq": revision + 1, "next_by_subj": self.prefix + key}
        return await self._message(query, key)

    async def _message(self, query: dict[str, object], key: str) -> Message:
        try:
            reply = await self.connection.api(
                f"STREAM.MSG.GET.{self.stream}", query, timeout_s=ANSWER_S
            )
        except StoreMissingError as error:
            raise self._missing() from error
        except NotFoundError as error:
            raise NotFoundError(f"{self.name} has no {key}") from error
        raw = reply["message"]
        headers = parse_headers(base64.b64decode(raw.get("hdrs", "")))
        return Message(
            key=raw["subject"][len(self.prefix) :],
            revision=raw["seq"],
            value=base64.b64decode(raw.get("data", "")),
            marker=marker(headers),
            created=raw.get("time", ""),
        )

    async def _info(
        self, query: dict[str, object] | None = None, *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        try:
            return await self.connection.api(
                f"STREAM.INFO.{self.stream}", query, timeout_s=timeout_s
            )
        except StoreMissingError as error:
            raise self._missing() from error

    async def _found_in_the_end(self, kind: KvKind[Any]) -> dict[str, Any]:
        clock = asyncio.get_running_loop().time
        deadline = clock() + ELECTION_S
        while True:
            try:
                return await self._found(kind)
            except StoreTimeoutError:
                if clock() >= deadline:
                    raise
                log.warning("nobody answers for bucket %s; it is asked for again", self.name)

    async def _found(self, kind: KvKind[Any]) -> dict[str, Any]:
        try:
            return await self.info()
        except StoreMissingError:
            if not kind.create:
                raise
            return await self._learnt(await self._create(kind))

    async def _create(self, kind: KvKind[Any]) -> dict[str, Any]:
        try:
            return await create_stream(self.connection, self._config(kind), replicas=kind.replicas)
        except StoreError as error:
            try:
                return await self._info()  # another client may have created it since we looked
            except StoreMissingError:
                raise error from None

    def _config(self, kind: KvKind[Any]) -> dict[str, object]:
        age = int((kind.ttl_s or 0) * NANOSECONDS)
        window = DUPLICATES_S * NANOSECONDS
        config: dict[str, object] = {
            "name": self.stream,
            "subjects": [f"{self.prefix}>"],
            "max_msgs_per_subject": HISTORY if kind.history is None else kind.history,
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
            ttl_s = math.ceil(self.connection.marker_ttl_s or MARKER_TTL_S)
            config["subject_delete_marker_ttl"] = ttl_s * NANOSECONDS
        return config

    def difference(self, kind: KvKind[Any], config: Mapping[str, Any]) -> str | None:
        """Return how this configuration differs from the options that *kind* gives, None if not."""
        wanted = self._config(kind)
        for option, field in _DECLARED.items():
            has = config.get(field, 0)
            if getattr(kind, option) is not None and has != wanted[field]:
                return (
                    f"bucket {self.name} exists with {option} {_shown(option, has)}"
                    f", but {_shown(option, wanted[field])} is declared: change the declaration, "
                    f"or the bucket with `nats stream edit {self.stream}`"
                )
        return None

    def _missing(self) -> StoreMissingError:
        return StoreMissingError(
            f"bucket {self.name} does not exist: make it with `nats kv add {self.name}`, "
            "or start a controller that declares it"
        )


_DECLARED = {
    "history": "max_msgs_per_subject",
    "ttl_s": "max_age",
    "replicas": "num_replicas",
    "storage": "storage",
    "max_value_bytes": "max_msg_size",
}


def _shown(option: str, value: Any) -> str:
    if (option, value) in {("ttl_s", 0), ("max_value_bytes", -1)}:
        return "None"
    return f"{value / NANOSECONDS:g}" if option == "ttl_s" else str(value)


async def create_stream(
    connection: Connection, config: Mapping[str, object], *, replicas: int | None
) -> dict[str, Any]:
    """Create a stream; None makes three replicas in a cluster and one on a single server."""
    endpoint = f"STREAM.CREATE.{config['name']}"
    if replicas is None:
        try:
            return await connection.api(endpoint, {**config, "num_replicas": REPLICAS})
        except StoreTimeoutError:
            raise
        except StoreError:
            replicas = 1  # a server on its own refuses
    return await connection.api(endpoint, {**config, "num_replicas": replicas})
