"""One socket's bytes through everything: `python -m tests.benchmarks.bench_offline`.

Prints the processor time per key in microseconds, of a cold start and of live updates, beside that
of a naive loop: nats-py's `watchall`, which decodes each value and calls a handler. Rounds of both
alternate, and the best of each count, so that the ratio differs little on a busy machine. The same
for keys that other members of a group sync; the program fails if they cost more than `FOREIGN_MAX`.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from time import process_time
from typing import Any

import msgspec
import uvloop
from nats.aio.client import Client
from nats.js import api
from nats.js.client import JetStreamContext
from nats.js.kv import KeyValue
from nats.js.manager import JetStreamManager

from natsctl import Controller, ControllerRuntime, Object, Operator, kv, primary
from natsctl.core.coordination.shares import Participation
from tests.support.stores.bucket_server import FIRST, SID, OfflineStores, message

KEYS, ROUNDS = 10_000, 15
COLD = 7  # pairs of cold starts
FOREIGN_MAX = 0.45  # of the naive loop's 8.9 µs: 4 µs on an idle machine
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
    return await spent(arrive(chunks), lambda: counting.synced >= KEYS)


async def spent(arrival: Awaitable[None], is_over: Callable[[], bool]) -> float:
    gc.collect()
    began = process_time()
    await arrival
    while not is_over():  # noqa: ASYNC110 - each turn is part of the cost
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


async def foreign(rounds: int) -> list[float]:
    """Return the costs of a cold start and of live rounds of a member that waits for its shares."""

    async def later(_name: str) -> bool:
        return False

    controller, stores = Widgets(), OfflineStores(BUCKET, KEYS)
    share = partial(Participation, stores.store, count=256, ttl_s=3600.0, first_run=later)
    operator = Operator([controller], nats=stores, participate=share)
    task = asyncio.create_task(operator.run())
    await stores.began.wait()
    table, costs = controller.widgets.informer.table, []
    for number in range(rounds + 1):
        newest = table.revision + KEYS if number else FIRST + KEYS - 1
        arrival = stores.arrive(stores.chunks(messages(number)))
        costs.append(await spent(arrival, lambda newest=newest: table.revision >= newest))  # type: ignore[misc]
    operator.stop()
    await task
    assert not controller.synced
    return costs


def main() -> None:
    _without_server()
    runs = [uvloop.run(measured(ROUNDS if number == 0 else 0)) for number in range(COLD)]
    others = [uvloop.run(foreign(ROUNDS if number == 0 else 0)) for number in range(COLD)]
    rounds = {
        "cold": ([run[0] for run in runs], [run[0] for run in others]),
        "live": (runs[0][1:], others[0][1:]),
    }
    ratios = []
    for name, (pairs, of_others) in rounds.items():
        own, peer = (min(pair[index] for pair in pairs) for index in (0, 1))
        print(f"{name}: {own:6.2f} µs per key, naive {peer:6.2f} µs, ratio {own / peer:.2f}")
        ratios.append(min(of_others) / peer)
        print(f"  of another member: {min(of_others):6.2f} µs, ratio {ratios[-1]:.2f}")
    if max(ratios) > FOREIGN_MAX:
        raise SystemExit(
            f"a key of another member costs more than {FOREIGN_MAX:g} of the naive loop"
        )


if __name__ == "__main__":
    main()
