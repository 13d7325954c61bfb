"""One socket's bytes through everything: `python -m tests.benchmarks.bench_offline`.

Prints the processor time per key in microseconds, of a cold start and of live updates, the best of
several rounds. It differs little on a busy machine: compare two commits in alternation.
"""

import asyncio
import gc
from time import process_time

import msgspec
import uvloop

from natsctl import Controller, ControllerRuntime, Object, kv, primary
from tests.support.stores.offline_bucket import OfflineStores

KEYS, ROUNDS = 20_000, 5
VALUE = (
    b'{"metadata":{"labels":{"app":"demo"},"generation":1,"uid":"8c1f2a7e-0000-4000-8000-%012d"},'
    b'"spec":{"seq":%d,"image":"registry.local/app:1.2.3","replicas":3,"halted":false},'
    b'"status":{"note":"' + b"x" * 60 + b'"},"pad":"' + b"p" * 60 + b'"}'
)


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
    widgets = primary(kv(Widget, bucket="bench"))
    synced = 0

    async def sync_handler(self, key: str) -> None:
        widget = self.widgets.get(key)
        self.synced += widget is not None


async def measured() -> dict[str, float]:
    """Return the processor time per key of the cold start and of live updates."""
    controller, stores = Widgets(), OfflineStores("bench", KEYS)
    runtime = ControllerRuntime(controller, nats=stores)
    task = asyncio.create_task(runtime.run())
    await stores.began.wait()
    costs: list[float] = []
    for number in range(ROUNDS + 1):
        messages = [(f"k{j:06}", VALUE % (j, number * KEYS + j)) for j in range(KEYS)]
        controller.synced = 0
        gc.collect()
        began = process_time()
        await stores.receive(messages)
        while controller.synced < KEYS:  # noqa: ASYNC110 - each turn is part of the cost
            await asyncio.sleep(0)
        costs.append((process_time() - began) / KEYS * 1e6)
    runtime.stop()
    await task
    return {"cold, µs per key": costs[0], "live, µs per key": min(costs[1:])}


if __name__ == "__main__":
    for name, value in uvloop.run(measured()).items():
        print(f"{name:20}{value:10.2f}")
