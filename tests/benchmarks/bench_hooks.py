"""A hook beside the same controller in Python: how many keys a second, and put to child.

The service is the example in Python, in a process of its own. Both controllers run in this process
with the same number of workers, each on buckets of its own server.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import quantiles

from nats.js.kv import KeyValue

from natsctl import (
    Controller,
    ControllerRuntime,
    HookController,
    connect,
    primary,
    secondary,
    untyped,
)
from tests.benchmarks.support.measured_server import Sizes
from tests.benchmarks.support.results import Row, compared
from tests.support.clients.plain_client import plain_client
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

SERVICE = Path(__file__).parents[2] / "examples" / "hooks" / "python" / "hook.py"
WORKERS = 16
KEYS, PUTS, PUTS_PER_S = 3_000, 600, 100
HOOK, PYTHON = "hook", "Python"


class Direct(Controller):
    workers = WORKERS
    shops = primary(untyped("shops"))
    pages = secondary(untyped("pages"))

    async def sync_handler(self, key: str) -> None:
        shop = self.shops.get(key)
        if shop is not None:
            page = {"spec": {"text": shop.spec["text"].upper()}}
            await self.pages.apply(f"{key}.0", Direct.pages.kind.decode(json.dumps(page).encode()))
            await self.shops.update_status(key, {"ready": True, "pages": 1})


class Asking(HookController):
    hook = "shops.sync"
    workers = WORKERS
    shops = primary(untyped("shops"))
    pages = secondary(untyped("pages"))


class Side:
    """A running controller, and when each of its pages was seen."""

    def __init__(self, shops: KeyValue) -> None:
        self.seen: dict[str, float] = {}
        self._shops = shops

    async def put(self, key: str, text: str) -> float:
        sent = time.perf_counter()
        await self._shops.put(key, json.dumps({"spec": {"copies": 1, "text": text}}).encode())
        return sent

    async def reach(self, count: int) -> None:
        await eventually(lambda: len(self.seen) >= count, every_s=0.005)


async def run(sizes: Sizes) -> list[Row]:
    rates: dict[str, list[float]] = {HOOK: [], PYTHON: []}
    p50: dict[str, list[float]] = {HOOK: [], PYTHON: []}
    p99: dict[str, list[float]] = {HOOK: [], PYTHON: []}
    for _ in range(sizes.rounds):
        for side, controller in ((HOOK, Asking()), (PYTHON, Direct())):
            async with running(controller) as measured:
                began = time.perf_counter()
                await asyncio.gather(*(measured.put(f"k{n}", "a") for n in range(KEYS)))
                await measured.reach(KEYS)
                rates[side].append(KEYS / (time.perf_counter() - began))
                sent = {}
                for n in range(PUTS):
                    sent[f"p{n}"] = await measured.put(f"p{n}", "b")
                    await asyncio.sleep(1 / PUTS_PER_S)
                await measured.reach(KEYS + PUTS)
            delays = [(measured.seen[f"{key}.0"] - at) * 1e3 for key, at in sent.items()]
            ranks = quantiles(delays, n=100)
            p50[side].append(ranks[49])
            p99[side].append(ranks[98])
    return [
        compared("keys with a child", "/s", rates[HOOK], rates[PYTHON], peer=PYTHON),
        compared("put to child, p50", "ms", p50[HOOK], p50[PYTHON], peer=PYTHON),
        compared("put to child, p99", "ms", p99[HOOK], p99[PYTHON], peer=PYTHON),
    ]


@asynccontextmanager
async def running(controller: Controller) -> AsyncIterator[Side]:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            NatsServer(Path(folder) / "nats") as server,
            service(server.url),
            connect(server.url) as stores,
            plain_client(server.url) as client,
        ):
            runtime = ControllerRuntime(controller, nats=stores)
            work = asyncio.create_task(runtime.run())
            await runtime.synced.wait()
            js = client.jetstream()
            side = Side(await js.key_value("shops"))
            watch = await (await js.key_value("pages")).watchall()

            async def follow() -> None:
                async for entry in watch:
                    if entry is not None:
                        side.seen.setdefault(entry.key, time.perf_counter())

            following = asyncio.create_task(follow())
            try:
                yield side
            finally:
                following.cancel()
                runtime.stop()
                await work


@asynccontextmanager
async def service(url: str) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SERVICE), env={**os.environ, "NATS_URL": url}, stdout=-1
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        await process.wait()
