"""One socket's bytes through everything: `python -m tests.benchmarks.bench_offline`.

Prints the processor time per key in microseconds, of a cold start and of live updates, beside that
of a naive loop: nats-py's `watchall`, which decodes each value and calls a handler. Rounds of both
alternate, and the best of each count, so that the ratio differs little on a busy machine.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from time import process_time
from typing import Any

import msgspec
import uvloop
from nats.aio.client import Client
from nats.js import api
from nats.js.client import JetStreamContext
from nats.js.kv import KeyValue
from nats.js.manager import JetStreamManager

from natsctl import Controller, ControllerRuntime, Object, kv, primary
from tests.support.stores.offline_bucket import SID, OfflineStores, message

KEYS, ROUNDS = 10_000, 15
COLD = 7  # pairs of cold starts
BUCKET = "bench"
VALUE = (
    b'{"metadata":{"labels":{"app":"demo"},"generation":1,"uid":"8c1f2a7e-0000-4000-8000-%012d"},'
    b'"spec":{"seq":%d,"image":"registry.local/app:1.2.3","replicas":3,"halted":false},'
    b'"status":{"note":"' + b"x" * 60 + b'"},"pad":"' + b"p" * 60 + b'"}'
)

Arrive = Callable[[Iterable[bytes]], Awaitable[None]]
Messages = list[tuple[str, bytes]]


class Spec(msgspec.Struct, frozen=True, gc=False):
    replicas: int
    image: str
    halted: bool
    seq: int


class Widget(Object, frozen=True):
    spec: Spec


class Widgets(Controller):
    """Reads its object, and counts."""

    workers = 4
    resync_s = 1e7
    widgets = primary(kv(Widget, bucket=BUCKET))
    synced = 0

    async def sync_handler(self, key: str) -> None:
        widget = self.widgets.get(key)
        self.synced += widget is not None


class Naive:
    """A loop over nats-py's watch, without a server."""

    def __init__(self) -> None:
        self.synced = 0
        self.objects: dict[str, Widget] = {}
        self.client = client = Client()
        client._status = Client.CONNECTED  # noqa: SLF001 - no socket
        self._sent = 0

    async def run(self) -> None:
        decode = msgspec.json.Decoder(Widget).decode
        stream = self.client.jetstream()
        bucket = KeyValue(BUCKET, f"KV_{BUCKET}", f"$KV.{BUCKET}.", stream, direct=True)
        async for entry in await bucket.watchall():
            if entry is None or entry.operation is not None:
                continue
            self.objects[entry.key] = decode(entry.value)
            await self.handle(entry.key)

    async def handle(self, key: str) -> None:
        widget = self.objects.get(key)
        self.synced += widget is not None

    async def arrive(self, chunks: Iterable[bytes]) -> None:
        for chunk in chunks:
            await self.client._ps.parse(chunk)  # noqa: SLF001 - no socket
            for _ in range(3):
                await asyncio.sleep(0)

    def chunks(self, messages: Messages, size: int = 32_768) -> list[bytes]:
        frames = []
        sid = max(self.client._subs)  # noqa: SLF001 - no server gives it
        for key, value in messages:
            self._sent += 1
            frame = message(f"$KV.{BUCKET}.", f"KV_{BUCKET}", key, value, self._sent)
            frames.append(frame.replace(b" %b " % SID, b" %d " % sid, 1))
        data = b"".join(frames)
        return [data[first : first + size] for first in range(0, len(data), size)]


def _without_server() -> None:
    """Let nats-py make a consumer that nobody asks a server for."""

    async def nothing(*_args: object, **_options: object) -> None:
        pass

    async def consumer(*_args: object, **_options: object) -> api.ConsumerInfo:
        config = api.ConsumerConfig(deliver_subject="d")
        return api.ConsumerInfo(
            "x", f"KV_{BUCKET}", config=config, num_pending=KEYS, created=datetime.now(UTC)
        )

    replaced: tuple[tuple[Any, str, Any], ...] = (
        (Client, "_send_subscribe", nothing),
        (Client, "_send_unsubscribe", nothing),
        (Client, "_send_command", nothing),
        (Client, "_flush_pending", nothing),
        (JetStreamManager, "add_consumer", consumer),
        (JetStreamContext.PushSubscription, "consumer_info", consumer),
    )
    for owner, name, value in replaced:
        setattr(owner, name, value)


async def cost(counting: Any, arrive: Arrive, chunks: list[bytes]) -> float:
    """Return the processor time per key until all are handled, in microseconds."""
    counting.synced = 0
    gc.collect()
    began = process_time()
    await arrive(chunks)
    while counting.synced < KEYS:  # noqa: ASYNC110 - each turn is part of the cost
        await asyncio.sleep(0)
    return (process_time() - began) / KEYS * 1e6


def messages(number: int) -> Messages:
    return [(f"k{j:06}", VALUE % (j, number * KEYS + j)) for j in range(KEYS)]


async def measured(rounds: int) -> list[tuple[float, float]]:
    """Return the costs of a cold start and of live rounds, of natsctl and of the naive loop."""
    controller, stores = Widgets(), OfflineStores(BUCKET, KEYS)
    runtime = ControllerRuntime(controller, nats=stores)
    task = asyncio.create_task(runtime.run())
    await stores.began.wait()
    naive = Naive()
    loop = asyncio.create_task(naive.run())
    await asyncio.sleep(0.01)
    costs = []
    for number in range(rounds + 1):
        own = await cost(controller, stores.arrive, stores.chunks(messages(number)))
        peer = await cost(naive, naive.arrive, naive.chunks(messages(number)))
        costs.append((own, peer))
    runtime.stop()
    await task
    loop.cancel()
    return costs


def main() -> None:
    _without_server()
    runs = [uvloop.run(measured(ROUNDS if number == 0 else 0)) for number in range(COLD)]
    for name, pairs in (("cold", [run[0] for run in runs]), ("live", runs[0][1:])):
        own, peer = (min(pair[index] for pair in pairs) for index in (0, 1))
        print(f"{name}: {own:6.2f} µs per key, naive {peer:6.2f} µs, ratio {own / peer:.2f}")


if __name__ == "__main__":
    main()
