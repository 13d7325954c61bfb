"""A raw subscription gets every message whole and in order, for any split of the bytes."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
import uvloop
from nats.aio.msg import Msg

from natsctl.jetstream.reader import OneTimeClient, RawMessage
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

HEADERS = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"
STATUS = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 4\r\n\r\n"
MESSAGES: list[RawMessage] = [
    (b"a", b"", b"", None),
    (b"a.b", b"", b"value", None),
    (b"a", b"$JS.ACK.x", b"value", None),
    (b"a", b"", b"", HEADERS),
    (b"a", b"$JS.ACK.x", b"", HEADERS),
    (b"a", b"$JS.ACK.x", b"value", HEADERS),
    (b"inbox", b"", b"", STATUS),
    (b"inbox", b"$JS.FC.x", b"", STATUS),
    (b"a", b"", b"MSG a 1 5\r\nvalue\r\n", None),
    (b"a", b"$JS.ACK.x", b"\r\n" * 3000, HEADERS),
    (b"a", b"$JS.ACK.KV_b.name.1.7.5.1763829000000000000.0", b"value", None),
    (b"a", b"$JS.ACK.KV_b.name.1.8.6.1763829000000000000.0", b"", HEADERS),
    (b"a", b"$JS.ACK.hub.account.KV_b.name.1.9.7.1763829000000000000.0.x", b"value", None),
]


def frame(sid: int, message: RawMessage) -> bytes:
    subject, reply, data, headers = message
    words = [b"MSG" if headers is None else b"HMSG", subject, b"%d" % sid]
    words += [reply] if reply else []
    words += [] if headers is None else [b"%d" % len(headers)]
    body = (headers or b"") + data
    return b" ".join((*words, b"%d" % len(body))) + b"\r\n" + body + b"\r\n"


class Script:
    """A server that sends given bytes in pieces of a given size."""

    def __init__(self) -> None:
        self.url = ""
        self.received: list[bytes] = []  # the first words of the client's commands
        self._writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        writer.write(b'INFO {"max_payload":1048576,"headers":true}\r\n')
        async for line in reader:
            self.received.append(line.split()[0])
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")

    async def send(self, data: bytes, size: int) -> None:
        assert self._writer is not None
        for start in range(0, len(data), size):
            self._writer.write(data[start : start + size])
            await asyncio.sleep(0)

    def close(self) -> None:
        assert self._writer is not None
        self._writer.close()


@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[Script, OneTimeClient]]:
    script, client = Script(), OneTimeClient()
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await client.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False, connect_timeout=60)
    try:
        yield script, client
    finally:
        await client.close()
        script.close()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("size", [1, 2, 7, 40, 1_000, 100_000])
async def test_a_tap_gets_whole_messages_in_order(size: int) -> None:
    tapped: list[RawMessage] = []
    plain: list[tuple[str, bytes]] = []

    async def note(msg: Msg) -> None:
        plain.append((msg.subject, msg.data))

    async with scripted() as (script, client):
        await client.subscribe_raw("inbox", tapped.extend)
        await client.subscribe("other", cb=note)
        data = b"".join(frame(1, message) for message in MESSAGES)
        other_frames = frame(2, (b"other", b"", b"plain", None)) + frame(
            2, (b"other", b"", b"", HEADERS)
        )
        await script.send(data + other_frames + b"PING\r\n" + data + other_frames + data, size)
        await eventually(lambda: len(tapped) == 3 * len(MESSAGES))
        await eventually(lambda: len(plain) == 4)
    assert tapped == MESSAGES * 3
    assert plain == [("other", b"plain"), ("other", b"")] * 2


async def test_messages_after_unsubscribe_are_dropped() -> None:
    tapped: list[RawMessage] = []
    async with scripted() as (script, client):
        subscription = await client.subscribe_raw("inbox", tapped.extend)
        await client.flush()
        assert script.received[-2:] == [b"SUB", b"PING"]  # in this order
        await script.send(frame(1, MESSAGES[1]), 1_000)
        await eventually(lambda: tapped)
        await subscription.unsubscribe()
        await script.send(frame(1, MESSAGES[2]) + frame(1, MESSAGES[5]), 1_000)
        await asyncio.sleep(0.05)
        assert client.is_connected
    assert tapped == MESSAGES[1:2]


async def test_a_tap_reads_the_messages_of_a_real_server(nats_server: NatsServer) -> None:
    values = [os.urandom(size) for size in (0, 1, 312, 70_000, 900_000, 3)]
    sizes = [len(value) for value in values for _ in range(2)]
    tapped: list[RawMessage] = []
    client, publisher = OneTimeClient(), OneTimeClient()
    await client.connect(nats_server.url)
    await publisher.connect(nats_server.url)
    try:
        await client.subscribe_raw("things.>", tapped.extend)
        await client.flush()
        for value in values:
            await publisher.publish("things.a", value)
            await publisher.publish("things.b", value, reply="back", headers={"Name": "value"})

        def all_have_arrived() -> bool:
            assert [len(message[2]) for message in tapped] == sizes
            return True

        await eventually(all_have_arrived)
    finally:
        await client.close()
        await publisher.close()
    headers = b"NATS/1.0\r\nName: value\r\n\r\n"
    assert tapped == [
        message
        for value in values
        for message in (
            (b"things.a", b"", value, None),
            (b"things.b", b"back", value, headers),
        )
    ]


def test_other_tasks_run_between_the_reads_of_a_backlog(nats_server: NatsServer) -> None:
    address, sizes = urlsplit(nats_server.url), list[int]()

    def publish() -> None:
        with socket.create_connection((address.hostname, address.port), timeout=60) as sender:
            sender.sendall(b"CONNECT {}\r\n" + b"PUB a 1000\r\n%b\r\n" % bytes(1_000) * 4_000)
            sender.sendall(b"PING\r\n")
            answers = b""
            while b"PONG" not in answers:
                answers += sender.recv(4_096)

    async def receive_backlog() -> None:
        client, taken = OneTimeClient(), 0

        def note(messages: Sequence[RawMessage]) -> None:
            nonlocal taken
            taken += sum(len(data) for _, _, data, _ in messages)

        await client.connect(nats_server.url)
        await client.subscribe_raw("a", note)
        await client.flush()
        publish()  # meanwhile the event loop stands still, and the socket's buffer fills up
        while taken < 4_000_000:
            before = taken
            await asyncio.sleep(0)
            sizes.append(taken - before)
        await client.close()

    uvloop.run(receive_backlog())
    assert max(sizes) < 600_000
