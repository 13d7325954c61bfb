"""The pages of a table of many objects in the console: the first one, and those under changes.

All seconds are processor time of the console and its client, because other processes disturb
processor time least.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter, process_time

from tests.benchmarks.support.dataset import BUCKET, key, value
from tests.benchmarks.support.measured_server import Sizes, filled
from tests.benchmarks.support.results import Row, limited
from tests.support.clients.console_client import ConsoleClient, console_on
from tests.support.clients.nats import connect
from tests.support.servers.nats_server import NatsServer

FIRST_S = 0.3
CHANGES_PER_S = 50
PAGES = 20
PAGES_PER_S = 4
SHARE_MAX = 0.25  # of a core


async def run(sizes: Sizes) -> list[Row]:
    cold, warm, followed = list[float](), list[float](), list[float]()
    async with filled(sizes.keys) as server:
        for _ in range(sizes.rounds):
            async with console_on(server.url) as client:
                cold.append(await timed(client))
                warm.append(await timed(client, offset=50))
                followed.append(await under_changes(server, client))
    pages = f"of {sizes.keys:,} objects"
    return [
        limited(
            f"page {pages}, {name}",
            "s",
            seconds,
            target=f"< {FIRST_S:g}",
            enough=lambda seconds: seconds < FIRST_S,
        )
        for name, seconds in (("names not read", cold), ("names read", warm))
    ] + [
        limited(
            f"pages {pages}, {CHANGES_PER_S} changes/s, {PAGES_PER_S} pages/s",
            "cores",
            followed,
            target=f"<= {SHARE_MAX:g}",
            enough=lambda share: share <= SHARE_MAX,
        )
    ]


async def timed(client: ConsoleClient, **query: int) -> float:
    """Return the processor time of a page."""
    started = process_time()
    table = await client.read("keys", bucket=BUCKET, limit=50, **query)
    assert len(table["rows"]) == 50
    return process_time() - started


async def under_changes(server: NatsServer, client: ConsoleClient) -> float:
    """Return the processor time of the pages of one second while objects change."""
    async with changing(server):
        await asyncio.sleep(1)
        started, before = perf_counter(), process_time()
        for _ in range(PAGES):
            await timed(client)
            await asyncio.sleep(1 / PAGES_PER_S)
        return (process_time() - before) / (perf_counter() - started)


@asynccontextmanager
async def changing(server: NatsServer) -> AsyncIterator[None]:
    """Change objects while the context lasts."""

    async def change() -> None:
        async with connect(server.url) as connection:
            number = 0
            while True:
                number += 1
                await connection.client.publish(f"$KV.{BUCKET}.{key(number)}", value(number, 2))
                await asyncio.sleep(1 / CHANGES_PER_S)

    task = asyncio.create_task(change())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
