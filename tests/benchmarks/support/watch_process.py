"""Handles every object of the bucket with natsctl or with a naive loop, and prints the times.

    python -m tests.benchmarks.support.watch_process SIDE URL LISTED THEN VERSION LOOP

handles LISTED keys, prints a `Start`, handles version VERSION of THEN keys, prints an `End`, and
ends when its standard input is closed.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

import msgspec
import uvloop

from natsctl import Controller, ControllerRuntime, connect, primary
from tests.benchmarks.support.dataset import BUCKET, ITEMS, Item
from tests.benchmarks.support.process import memory_bytes

SETTLE_S = 0.5  # before memory is measured and changes begin

Seen = Callable[[str, int], None]
"""Takes the key of a handled object, and its version."""


class Start(msgspec.Struct, frozen=True):
    """The time to list and handle the bucket, and the memory afterwards."""

    wall_s: float
    cpu_s: float
    rss_bytes: int
    peak_bytes: int


class End(msgspec.Struct, frozen=True):
    """The handled changes after the start.

    `seen` has the keys whose last version was handled, each with the first such monotonic time.
    `handled` counts all calls of the handler, the first of which was at `began`.
    """

    seen: list[tuple[str, float]]
    handled: int
    began: float
    cpu_s: float


class Items(Controller):
    """Reports each key with its object to `seen`."""

    items = primary(ITEMS)

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    async def sync_handler(self, key: str) -> float | None:
        item = self.items.get(key)
        self._seen(key, -1 if item is None else item.spec.replicas)
        return None


async def natsctl(url: str, seen: Seen) -> None:
    async with connect(url) as connection:
        await ControllerRuntime(Items(seen), nats=connection).run()


async def naive(
    url: str, seen: Seen, cache: dict[str, Item] | None = None, *, plain: bool = False
) -> None:
    """Decode each value and call an async handler, as a short program with nats-py does.

    It keeps the objects in a *cache*, as a program does that looks at others. If *plain*, it
    decodes them with the standard library.
    """

    import nats  # noqa: PLC0415 - natsctl's side imports only what natsctl imports

    async def handler(key: str, item: Any) -> None:
        seen(key, item["spec"]["replicas"] if plain else item.spec.replicas)

    client = await nats.connect(url)
    bucket = await client.jetstream().key_value(BUCKET)
    decode: Callable[[bytes], Any] = json.loads if plain else msgspec.json.Decoder(Item).decode
    async for entry in await bucket.watchall():
        if entry is not None and entry.value is not None:
            item = decode(entry.value)
            if cache is not None:
                cache[entry.key] = item
            await handler(entry.key, item)


class Bare(asyncio.Protocol):
    """A socket whose messages are decoded and handled, and nothing else: the limit in Python.

    It keeps nothing, checks no order, and makes no task, queue or message object.
    """

    def __init__(self, seen: Seen) -> None:
        self.closed = asyncio.get_running_loop().create_future()
        self._seen = seen
        self._decode = msgspec.json.Decoder(Item).decode
        self._rest = b""
        subject = re.escape(f"$KV.{BUCKET}.".encode())
        self._value = re.compile(rb"MSG %b(\S+) 1 \S+ (\d+)\r\n" % subject).match
        self._other = re.compile(rb"(?:HMSG \S+ 1 (?:(\S+) )?\d+ (\d+)|[A-Z+-].*)\r\n").match

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        consumer = {
            "stream_name": f"KV_{BUCKET}",
            "config": {
                "deliver_subject": "bare",
                "deliver_policy": "last_per_subject",
                "filter_subject": f"$KV.{BUCKET}.>",
                "ack_policy": "none",
                "flow_control": True,
                "idle_heartbeat": 5_000_000_000,
            },
        }
        body = msgspec.json.encode(consumer)
        create = b"PUB $JS.API.CONSUMER.CREATE.KV_%b nobody %d\r\n%b\r\n"
        self._transport.write(b'CONNECT {"verbose":false,"headers":true}\r\nSUB bare 1\r\n')
        self._transport.write(create % (BUCKET.encode(), len(body), body))

    def connection_lost(self, _error: Exception | None) -> None:
        self.closed.set_result(None)

    async def handle(self, key: str, item: Item) -> None:
        self._seen(key, item.spec.replicas)

    def data_received(self, data: bytes) -> None:
        data, position = self._rest + data, 0
        while True:
            if frame := self._value(data, position):
                end = frame.end() + int(frame[2])
                if end + 2 > len(data):
                    break
                with suppress(StopIteration):
                    item = self._decode(data[frame.end() : end])
                    self.handle(frame[1].decode(), item).send(None)
                position = end + 2
            elif frame := self._other(data, position):
                end = frame.end() + (0 if frame[2] is None else int(frame[2]) + 2)
                if end > len(data):
                    break
                if frame[1]:
                    self._transport.write(b"PUB %b 0\r\n\r\n" % frame[1])
                elif data.startswith(b"PING", position):
                    self._transport.write(b"PONG\r\n")
                position = end
            else:
                break
        self._rest = data[position:]


async def bare(url: str, seen: Seen) -> None:
    host, port = url.removeprefix("nats://").split(":")
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(lambda: Bare(seen), host, int(port))
    await protocol.closed


SIDES: dict[str, Callable[[str, Seen], Awaitable[None]]] = {
    "natsctl": natsctl,
    "naive": naive,
    "naive, json": partial(naive, plain=True),
    "naive, holding": partial(naive, cache={}),
    "bare": bare,
}


class Observation:
    """Counts the keys of the listing, then records when the last version of a key is handled."""

    def __init__(self, listed: int, followed: int, version: int) -> None:
        self._started = time.monotonic()
        self._cpu = time.process_time()
        self._remaining = listed
        self._then = followed
        self._version = version
        self._seen: dict[str, float] = {}
        self._handled = 0
        self._began = 0.0
        self._listed = asyncio.Event()
        self._ended = asyncio.Event()
        self._times = (0.0, 0.0)
        self._cpu_s = 0.0
        if not listed:
            self._reach()

    def see(self, key: str, version: int) -> None:
        """Count a key of the listing, or a later change."""
        if self._remaining:
            self._remaining -= 1
            if not self._remaining:
                self._reach()
            return
        if not self._handled:
            self._began = time.monotonic()
        self._handled += 1
        if version == self._version:
            self._seen.setdefault(key, time.monotonic())  # a resync handles the key again
            if len(self._seen) == self._then:
                self._cpu_s = time.process_time() - self._cpu
                self._ended.set()

    def _reach(self) -> None:
        self._times = (time.monotonic() - self._started, time.process_time() - self._cpu)
        self._listed.set()

    async def start(self) -> Start:
        await self._listed.wait()
        await asyncio.sleep(SETTLE_S)
        wall_s, cpu_s = self._times
        self._cpu = time.process_time()
        return Start(wall_s, cpu_s, memory_bytes(), memory_bytes("VmHWM"))

    async def end(self) -> End:
        await self._ended.wait()
        return End(list(self._seen.items()), self._handled, self._began, self._cpu_s)


def _print(result: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
    sys.stdout.buffer.flush()


async def observe(side: str, url: str, listed: int, followed: int, version: int) -> None:
    observation = Observation(listed, followed, version)
    task = asyncio.ensure_future(SIDES[side](url, observation.see))
    _print(await observation.start())
    if followed:
        _print(await observation.end())
    await asyncio.to_thread(sys.stdin.buffer.read)
    task.cancel()
    await asyncio.wait({task})


def main(side: str, url: str, *numbers: str, loop: str) -> None:
    run = uvloop.run if loop == "uvloop" else asyncio.run
    listed, followed, version = map(int, numbers)
    run(observe(side, url, listed, followed, version))


if __name__ == "__main__":
    main(*sys.argv[1:-1], loop=sys.argv[-1])
