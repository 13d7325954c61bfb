"""A person with the NATS command line, who writes, reads and breaks buckets."""

import asyncio
import base64
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError

from natsctl.jetstream.connection.client import OneTimeClient

ANSWER_S = 2.0
NO_MESSAGE = 10037
BATCH = 1_000  # writes of which one is waited for: a stream drops what it cannot take in
PATIENCE_S = 60.0  # for that one
READS = 32  # entries that are asked for at once: each is to be answered in time
MARKED = re.compile(rb"KV-Operation: *(DEL|PURGE)|Nats-Marker-Reason:")


class Refused(Exception):  # noqa: N818 - what the server did
    """The server said no."""


class NoMessage(Refused):
    """There is none like that."""


FAILURES = (Refused, NatsError, OSError, TimeoutError)
"""What a call raises while servers are down."""


class Entry(msgspec.Struct, frozen=True):
    """The newest message of a key, as the stream's leader has it."""

    revision: int
    value: bytes
    marker: bool


async def _ignore(_error: Exception) -> None:
    """What nats-py meets in the background is of no interest here."""


class Admin:
    """Talks to the first of the servers that answers; every call may fail while none does."""

    def __init__(self, url: str) -> None:
        self._urls = url.split(",")
        self._client: OneTimeClient | None = None
        self._written = 0
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._disconnect()

    async def api(self, endpoint: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Ask the JetStream API; raises where it refuses or does not answer."""
        return await self.request(f"$JS.API.{endpoint}", b"" if body is None else encoded(body))

    async def request(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str] | None = None,
        *,
        answer_s: float = ANSWER_S,
    ) -> dict[str, Any]:
        client = None
        try:
            async with asyncio.timeout(2 * answer_s):
                client = await self._connected()
                reply = await client.request(subject, payload, timeout=answer_s, headers=headers)
        except Exception:
            await self._give_up(client)
            raise
        answer = json.loads(reply.data)
        if "error" in answer:
            refused = NoMessage if answer["error"].get("err_code") == NO_MESSAGE else Refused
            raise refused(f"{subject}: {answer['error']}")
        return answer

    async def publish(self, subject: str, payload: bytes) -> None:
        """Send a message and do not wait for what comes of it."""
        await (await self._connected()).publish(subject, payload)

    async def flush(self) -> None:
        """Wait until the server has what was published."""
        await (await self._connected()).flush(60)

    async def put(self, bucket: str, key: str, document: object) -> int:
        """Store *document* as people do, whatever was there; return its revision."""
        return int((await self.request(f"$KV.{bucket}.{key}", encoded(document)))["seq"])

    async def write(self, bucket: str, key: str, document: object) -> None:
        """Store *document*, one of many: the last of every `BATCH` is waited for."""
        self._written += 1
        subject, payload = f"$KV.{bucket}.{key}", encoded(document)
        if self._written % BATCH:
            await self.publish(subject, payload)
        else:
            await self.request(subject, payload, answer_s=PATIENCE_S)

    async def delete(self, bucket: str, key: str) -> int:
        """Put a delete marker."""
        answer = await self.request(f"$KV.{bucket}.{key}", b"", {"KV-Operation": "DEL"})
        return int(answer["seq"])

    async def create(self, bucket: str, **config: object) -> None:
        """Make the bucket as natsctl would, with this configuration on top."""
        await self.api(f"STREAM.CREATE.KV_{bucket}", _stream(bucket, config))

    async def drop(self, bucket: str) -> dict[str, Any]:
        """Delete the bucket and return the configuration that it had."""
        config = (await self.info(bucket))["config"]
        await self.api(f"STREAM.DELETE.KV_{bucket}")
        return dict(config)

    async def restore(self, config: dict[str, Any]) -> None:
        """Make a bucket again, empty, with the configuration that `drop` returned."""
        await self.api(f"STREAM.CREATE.{config['name']}", config)

    async def purge(self, bucket: str, key: str | None = None, **options: object) -> None:
        """Remove everything, or everything of one key, without a trace."""
        body = options if key is None else {"filter": f"$KV.{bucket}.{key}", **options}
        await self.api(f"STREAM.PURGE.KV_{bucket}", body)

    async def info(self, bucket: str, **query: object) -> dict[str, Any]:
        return await self.api(f"STREAM.INFO.KV_{bucket}", query)

    async def entry(self, bucket: str, key: str) -> Entry:
        """Return the key's newest message."""
        message = await self._message(bucket, {"last_by_subj": f"$KV.{bucket}.{key}"})
        return _entry(message)

    async def entries(self, bucket: str) -> dict[str, Entry]:
        """Return the newest message of every key, markers too, read at the leader."""
        prefix = f"$KV.{bucket}."
        info = await self.info(bucket, subjects_filter=f"{prefix}>")
        subjects = info["state"].get("subjects") or {}
        assert info.get("total", 0) == len(subjects), "more keys than one page: too big a test"
        remaining, found = iter(subjects), dict[str, Entry]()

        async def read() -> None:
            for subject in remaining:
                key = subject.removeprefix(prefix)
                found[key] = await self.entry(bucket, key)

        reads = await asyncio.gather(*(read() for _ in range(READS)), return_exceptions=True)
        for failure in filter(None, reads):
            raise failure
        return found

    async def markers(self, bucket: str) -> set[str]:
        """Return the keys of which the bucket still has any delete marker, newest or not."""
        found, sequence, prefix = set(), 1, f"$KV.{bucket}."
        with suppress(NoMessage):
            while True:
                query = {"seq": sequence, "next_by_subj": f"{prefix}>"}
                message = await self._message(bucket, query)
                sequence = message["seq"] + 1
                if _entry(message).marker:
                    found.add(message["subject"].removeprefix(prefix))
        return found

    async def consumers(self) -> dict[str, list[str]]:
        """Return the names of all consumers of all streams that have any."""
        streams = await self.api("STREAM.NAMES", {})
        found = {}
        for stream in streams.get("streams") or []:
            listed = await self.api(f"CONSUMER.NAMES.{stream}", {})
            if listed.get("consumers"):
                found[stream] = listed["consumers"]
        return found

    async def _message(self, bucket: str, query: dict[str, object]) -> dict[str, Any]:
        answer = await self.api(f"STREAM.MSG.GET.KV_{bucket}", query)
        return dict(answer["message"])

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is None or not self._client.is_connected:
                await self._disconnect()
                await self._connect()
            assert self._client is not None
            return self._client

    async def _give_up(self, client: Client | None) -> None:
        """Let the next request connect anew, unless another one does so already."""
        if client is not None and client is self._client:
            async with self._connecting:
                if client is self._client:
                    await self._disconnect()

    async def _connect(self) -> None:
        for url in self._urls:
            self._client = OneTimeClient()
            try:
                await self._client.connect(
                    url,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=1,
                    error_cb=_ignore,
                )
            except FAILURES:
                await self._disconnect()
            else:
                return
        raise OSError(f"none of {self._urls} answers")

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.abort()
            with suppress(*FAILURES):
                async with asyncio.timeout(ANSWER_S):
                    await client.close()


def encoded(document: object) -> bytes:
    """Return *document* as JSON."""
    return msgspec.json.encode(document)


def _entry(message: dict[str, Any]) -> Entry:
    headers = base64.b64decode(message.get("hdrs", ""))
    value = base64.b64decode(message.get("data", ""))
    return Entry(message["seq"], value, MARKED.search(headers) is not None)


def _stream(bucket: str, config: dict[str, object]) -> dict[str, object]:
    return {
        "name": f"KV_{bucket}",
        "subjects": [f"$KV.{bucket}.>"],
        "max_msgs_per_subject": 5,
        "storage": "file",
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
        **config,
    }
