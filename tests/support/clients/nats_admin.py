"""An administrator's NATS client, which writes, reads and breaks buckets without natsctl."""

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypeVar

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from natsctl.jetstream.reader import OneTimeClient, parse_headers

T = TypeVar("T")

ANSWER_S = 30.0  # a machine that stops for some seconds fails no test
AGAIN_S = 2.0  # for an answer, before a read is sent again
CONNECT_S = 5.0
CLOSE_S = 2.0
PAUSES_S = (0.01, 0.03, 0.1, 0.3, 1.0, 2.0)  # before a write that no server received is sent again
NO_MESSAGE = 10037
READ = re.compile(r"(STREAM|CONSUMER)\.(INFO|NAMES|MSG\.GET)\b")  # requests that change nothing
BATCH = 1_000  # messages of a read, and writes of an acknowledgement: more are too fast
PATIENCE_S = 60.0  # for this acknowledgement


class Refused(Exception):  # noqa: N818 - the response of the server
    """The server refused the request."""


class NoMessage(Refused):
    """The stream has no such message."""


FAILURES = (Refused, NatsError, OSError, TimeoutError)
"""The exceptions of calls while servers are down."""


class Entry(msgspec.Struct, frozen=True):
    """The newest message of a key, as the stream's leader has it."""

    revision: int
    value: bytes
    marker: bool


async def _ignore(_error: Exception) -> None:
    """Ignore background errors of nats-py."""


class Admin:
    """Connects to the first server that answers. Every call raises if none does.

    A call that may fail and is repeated can wait *answer_s* only for an answer.
    """

    def __init__(self, url: str, *, answer_s: float = ANSWER_S) -> None:
        self.url = url
        self._urls = url.split(",")  # those that have just failed come last
        self._answer_s = answer_s
        self._client: OneTimeClient | None = None
        self._written = 0
        self._connecting = asyncio.Lock()
        self._connect_s = CONNECT_S if len(self._urls) > 1 else ANSWER_S  # for one of them

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._disconnect()

    async def api(self, endpoint: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Send a request to the JetStream API. Raises if the server refuses or is silent."""
        subject, payload = f"$JS.API.{endpoint}", b"" if body is None else encoded(body)
        if READ.match(endpoint):
            return await self._repeated(
                lambda answer_s: self.request(subject, payload, answer_s=answer_s)
            )
        return await self.request(subject, payload)

    async def request(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str] | None = None,
        *,
        answer_s: float | None = None,
    ) -> dict[str, Any]:
        limit_s = answer_s or self._answer_s
        reply = await self._call(
            limit_s, lambda client: _answer(client, subject, payload, limit_s, headers)
        )
        response = json.loads(reply.data)
        if "error" in response:
            error_class = NoMessage if response["error"].get("err_code") == NO_MESSAGE else Refused
            raise error_class(f"{subject}: {response['error']}")
        return response

    async def publish(self, subject: str, payload: bytes) -> None:
        """Send a message without waiting for a reply."""
        await (await self._connected()).publish(subject, payload)

    async def flush(self) -> None:
        """Wait until the server has received all published messages."""
        await (await self._connected()).flush(60)

    async def put(self, bucket: str, key: str, document: object) -> int:
        """Store *document* without a revision check, and return its revision."""
        return int((await self.request(f"$KV.{bucket}.{key}", encoded(document)))["seq"])

    async def write(self, bucket: str, key: str, document: object) -> None:
        """Store *document*, and wait for an acknowledgement of the first of `BATCH` writes."""
        subject, payload = f"$KV.{bucket}.{key}", encoded(document)
        if self._written % BATCH:
            await self.publish(subject, payload)
        else:
            await self.request(subject, payload, answer_s=PATIENCE_S)
        self._written += 1

    async def delete(self, bucket: str, key: str) -> int:
        """Put a delete marker."""
        response = await self.request(f"$KV.{bucket}.{key}", b"", {"KV-Operation": "DEL"})
        return int(response["seq"])

    async def create(self, bucket: str, **config: object) -> None:
        """Create the bucket as natsctl does, with these changes of its configuration."""
        await self.api(f"STREAM.CREATE.KV_{bucket}", _stream(bucket, config))

    async def drop(self, bucket: str) -> dict[str, Any]:
        """Delete the bucket, and return its configuration."""
        config = (await self.info(bucket))["config"]
        await self.api(f"STREAM.DELETE.KV_{bucket}")
        return dict(config)

    async def restore(self, config: dict[str, Any]) -> None:
        """Create an empty bucket with the configuration that `drop` returned."""
        await self.api(f"STREAM.CREATE.{config['name']}", config)

    async def purge(self, bucket: str, key: str | None = None, **options: object) -> None:
        """Purge the bucket or one key. No delete marker remains."""
        body = options if key is None else {"filter": f"$KV.{bucket}.{key}", **options}
        await self.api(f"STREAM.PURGE.KV_{bucket}", body)

    async def info(self, bucket: str, **query: object) -> dict[str, Any]:
        return await self.api(f"STREAM.INFO.KV_{bucket}", query)

    async def entry(self, bucket: str, key: str) -> Entry:
        """Return the key's newest message."""
        message = await self._message(bucket, {"last_by_subj": f"$KV.{bucket}.{key}"})
        return _entry(message)

    async def entries(self, bucket: str) -> dict[str, Entry]:
        """Return the newest message of every key, including delete markers."""
        return dict(await self._messages(bucket))

    async def markers(self, bucket: str) -> set[str]:
        """Return the keys that have a delete marker at any revision."""
        return {key for key, entry in await self._messages(bucket) if entry.marker}

    async def consumers(self) -> dict[str, list[str]]:
        """Return the names of all consumers of all streams that have any."""
        streams = await self.api("STREAM.NAMES", {})
        consumers = {}
        for stream in streams.get("streams") or []:
            listed = await self.api(f"CONSUMER.NAMES.{stream}", {})
            if listed.get("consumers"):
                consumers[stream] = listed["consumers"]
        return consumers

    async def _message(self, bucket: str, query: dict[str, object]) -> dict[str, Any]:
        response = await self.api(f"STREAM.MSG.GET.KV_{bucket}", query)
        return dict(response["message"])

    async def _messages(self, bucket: str) -> list[tuple[str, Entry]]:
        """Return all messages in their order, of a replica that has all that the leader had."""
        prefix = f"$KV.{bucket}."
        async with asyncio.timeout(PATIENCE_S):
            while True:
                count = (await self.info(bucket))["state"]["messages"]
                messages, after = list[tuple[str, Entry]](), 0
                while len(messages) < count:
                    found = await self._repeated(partial(self._batch, bucket, after))
                    if not found:
                        break
                    messages += found
                    after = found[-1][1].revision
                if len(messages) >= count:
                    known = (item for item in messages if item[0].startswith(prefix))
                    return [(subject.removeprefix(prefix), entry) for subject, entry in known]
                await asyncio.sleep(PAUSES_S[0])

    async def _batch(self, bucket: str, after: int, answer_s: float) -> list[tuple[str, Entry]]:
        return await self._call(answer_s, lambda client: _batch(client, bucket, after, answer_s))

    async def _call(self, answer_s: float, send: Callable[[Client], Awaitable[T]]) -> T:
        client = None
        try:
            async with asyncio.timeout(len(self._urls) * self._connect_s + 2 * answer_s):
                client = await self._connected()
                return await send(client)
        except Exception:
            await self._give_up(client)
            raise

    async def _repeated(self, read: Callable[[float], Awaitable[T]]) -> T:
        """Read again with a longer limit if nobody answers.

        A bucket without a leader never answers, and neither does a replica that is paused.
        """
        answer_s = min(AGAIN_S, self._answer_s)
        while True:
            try:
                return await read(answer_s)
            except (TimeoutError, NoRespondersError):
                if answer_s >= self._answer_s:
                    raise
            await asyncio.sleep(answer_s / 4)
            answer_s = min(2 * answer_s, self._answer_s)

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is None or not self._client.is_connected:
                await self._disconnect()
                await self._connect()
            assert self._client is not None
            return self._client

    async def _give_up(self, client: Client | None) -> None:
        """Disconnect, so that the next request connects again."""
        if client is not None and client is self._client:
            async with self._connecting:
                if client is self._client:
                    await self._disconnect()

    async def _connect(self) -> None:
        for url in tuple(self._urls):
            self._client = OneTimeClient()
            try:
                await self._client.connect(
                    url,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=int(self._connect_s),
                    error_cb=_ignore,
                )
            except FAILURES:
                self._urls.append(self._urls.pop(0))
                await self._disconnect()
            else:
                return
        raise OSError(f"none of {self.url} answers")

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.abort()
            with suppress(*FAILURES):
                async with asyncio.timeout(CLOSE_S):
                    await client.close()


async def _answer(
    client: Client, subject: str, payload: bytes, answer_s: float, headers: dict[str, str] | None
) -> Msg:
    """Send a request, again if it is a write that no server has received.

    No server receives it shortly after the creation of a bucket or the election of its leader.
    """
    for pause_s in PAUSES_S:
        try:
            return await client.request(subject, payload, answer_s, headers=headers)
        except NoRespondersError:
            if not subject.startswith("$KV."):
                raise
        await asyncio.sleep(pause_s)
    return await client.request(subject, payload, answer_s, headers=headers)


async def _batch(
    client: Client, bucket: str, after: int, answer_s: float
) -> list[tuple[str, Entry]]:
    """Return the next messages, by subject, of the replica that answers."""
    inbox, found = client.new_inbox(), list[tuple[str, Entry]]()
    query = encoded({"seq": after + 1, "next_by_subj": ">", "batch": BATCH})
    subscription = await client.subscribe(inbox)
    try:
        await client.publish(f"$JS.API.DIRECT.GET.KV_{bucket}", query, reply=inbox)
        while True:
            message = await subscription.next_msg(answer_s)
            headers = message.headers or {}
            if "Nats-Subject" not in headers:
                if headers["Status"].startswith("503"):
                    raise NoRespondersError
                assert headers["Status"].startswith(("204", "404")), headers  # end, none
                return found
            entry = Entry(int(headers["Nats-Sequence"]), message.data, _is_marker(headers))
            found.append((headers["Nats-Subject"], entry))
    finally:
        await subscription.unsubscribe()


def encoded(document: object) -> bytes:
    """Return *document* as JSON."""
    return msgspec.json.encode(document)


def _entry(message: dict[str, Any]) -> Entry:
    headers = parse_headers(base64.b64decode(message.get("hdrs", "")))
    value = base64.b64decode(message.get("data", ""))
    return Entry(message["seq"], value, _is_marker(headers))


def _is_marker(headers: Mapping[str, str]) -> bool:
    deleted = headers.get("KV-Operation") in {"DEL", "PURGE"}
    return deleted or "Nats-Marker-Reason" in headers


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
