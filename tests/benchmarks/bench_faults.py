"""The time from a put to its handler after a killed server or a deleted consumer."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import nats
from nats.errors import Error as NatsError

from tests.benchmarks.support.dataset import BUCKET, key, value
from tests.benchmarks.support.measured_server import Sizes, filled, observing
from tests.benchmarks.support.results import OURS, PEER, SIDES, Row, limited
from tests.support.servers.nats_server import NatsServer

KEYS = 1_000
DOWNTIME_S = 0.3
PATIENCE_S = 30.0
TRY_S = 0.2

Fault = Callable[[NatsServer], Awaitable[None]]


async def run(sizes: Sizes) -> list[Row]:
    return [
        await _measured(f"server killed and started after {DOWNTIME_S} s", _kill, sizes, 0.5),
        await _measured("consumer deleted", _delete_consumers, sizes, 3.0),
    ]


async def _measured(name: str, inject_fault: Fault, sizes: Sizes, limit_s: float) -> Row:
    delays: dict[str, list[float]] = {side: [] for side in SIDES}
    version = 0
    for _ in range(sizes.faults):
        for side in SIDES:
            version += 1
            async with (
                filled(KEYS) as server,
                observing(
                    side, server, sizes, listed=KEYS, followed=1, version=version
                ) as observer,
            ):
                await inject_fault(server)
                sent = await _put(server.url, version)
                end = await observer.end(PATIENCE_S)
            delays[side].append(PATIENCE_S if end is None else end.seen[0][1] - sent)
    return limited(
        f"{name}: put to handler", "s", delays[OURS], PEER, delays[PEER], at_most=limit_s
    )


async def _kill(server: NatsServer) -> None:
    server.kill()
    await asyncio.sleep(DOWNTIME_S)
    await server.start()


async def _delete_consumers(server: NatsServer) -> None:
    client = await nats.connect(server.url)
    try:
        jetstream = client.jetstream()
        for consumer in await jetstream.consumers_info(f"KV_{BUCKET}"):
            await jetstream.delete_consumer(f"KV_{BUCKET}", consumer.name)
    finally:
        await client.close()


async def _put(url: str, version: int) -> float:
    """Update a key, repeat until the server accepts, and return when the accepted put was sent."""
    client = await nats.connect(url)
    try:
        jetstream = client.jetstream()
        while True:
            sent = time.monotonic()
            with suppress(NatsError):
                subject = f"$KV.{BUCKET}.{key(0)}"
                await jetstream.publish(subject, value(0, version), timeout=TRY_S)
                return sent
    finally:
        await client.close()
