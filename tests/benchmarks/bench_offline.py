"""One socket's bytes through everything: `python -m tests.benchmarks.bench_offline`.

Prints the processor time per key in microseconds, of a cold start and of live updates, for keys
that are synced, and for those that other members of a group sync. The program fails if these cost
more than `FOREIGN_MAX` of the others.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from functools import partial
from time import process_time

import msgspec
import uvloop

from natsctl import Controller, ControllerRuntime, Object, Operator, kv, primary
from natsctl.core.coordination.shares import Participation
from tests.support.stores.bucket_server import FIRST, OfflineStores

KEYS, ROUNDS = 10_000, 15
COLD = 7  # cold starts
FOREIGN_MAX = 0.3  # 4 µs on an idle machine
BUCKET = "bench"
VALUE = (
    b'{"metadata":{"labels":{"app":"demo"},"generation":1,"uid":"8c1f2a7e-0000-4000-8000-%012d"},'
    b'"spec":{"seq":%d,"image":"registry.local/app:1.2.3","replicas":3,"halted":false},'
    b'"status":{"note":"' + b"x" * 60 + b'"},"pad":"' + b"p" * 60 + b'"}'
)

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


async def spent(arrival: Awaitable[None], is_over: Callable[[], bool]) -> float:
    gc.collect()
    began = process_time()
    await arrival
    while not is_over():  # noqa: ASYNC110 - each turn is part of the cost
        await asyncio.sleep(0)
    return (process_time() - began) / KEYS * 1e6


def messages(number: int) -> Messages:
    return [(f"k{j:06}", VALUE % (j, number * KEYS + j)) for j in range(KEYS)]


async def own(rounds: int) -> list[float]:
    """Return the costs of a cold start and of live rounds."""
    controller, stores = Widgets(), OfflineStores(BUCKET, KEYS)
    runtime = ControllerRuntime(controller, nats=stores)
    task = asyncio.create_task(runtime.run())
    await stores.began.wait()
    costs = []
    for number in range(rounds + 1):
        controller.synced = 0
        arrival = stores.arrive(stores.chunks(messages(number)))
        costs.append(await spent(arrival, lambda: controller.synced >= KEYS))
    runtime.stop()
    await task
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
    """Rounds of both alternate, and the best of each count."""
    runs = [
        [uvloop.run(side(ROUNDS if number == 0 else 0)) for side in (own, foreign)]
        for number in range(COLD)
    ]
    ratios = []
    for name, part in {"cold": slice(1), "live": slice(1, None)}.items():
        mine, others = (min(cost for run in runs for cost in run[side][part]) for side in (0, 1))
        ratios.append(others / mine)
        print(f"{name}: {mine:6.2f} µs per key; of another member {others:6.2f}, {ratios[-1]:.2f}x")
    if max(ratios) > FOREIGN_MAX:
        raise SystemExit(f"a key of another member costs more than {FOREIGN_MAX:g} of an own one")


if __name__ == "__main__":
    main()
