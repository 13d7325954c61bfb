"""What a watch costs: its first list, the next watches, and a list of names.

The time counts until the watch has caught up. Processor times are natsctl's and the server's.
"""

import asyncio
import time
from collections import defaultdict

from nats.js.api import ConsumerConfig, DeliverPolicy

from natsctl import connect
from natsctl.jetstream.feed import names
from natsctl.jetstream.store import KvStore
from natsctl.model.store import Applied, Batch, Listed, Listing
from tests.benchmarks.support.dataset import ITEMS
from tests.benchmarks.support.measured_server import Sizes, filled
from tests.benchmarks.support.process import processor_s
from tests.benchmarks.support.results import Row, limited, shown
from tests.support.clients.plain_client import plain_jetstream
from tests.support.servers.nats_server import NatsServer

RECONNECT_MS = 500.0
ROUNDS = 3  # kills of the server for each side


class Measured:
    """The times of one step, in milliseconds."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._began = time.monotonic(), time.process_time(), processor_s(self._server.pid)

    def rows(self, label: str) -> tuple[float, list[Row]]:
        wall, client, server = self._began
        took = 1000 * (time.monotonic() - wall)
        costs = {
            "natsctl": 1000 * (time.process_time() - client),
            "server": 1000 * (processor_s(self._server.pid) - server),
        }
        rows = [
            shown(f"  {label}, processor time of {who}", "ms", [ms]) for who, ms in costs.items()
        ]
        return took, rows


async def run(sizes: Sizes) -> list[Row]:
    return [row for count in sizes.reconnected for row in await _measured(count)]


async def _measured(count: int) -> list[Row]:
    rows: list[Row] = []
    keys: dict[str, None] = {}
    lost = asyncio.Event()
    async with filled(count) as server, connect(server.url) as nats:
        store = await nats.open(ITEMS)
        view = keys.keys()
        for label in ("cold start", "reconnect"):
            measured = Measured(server)
            lists = await _watched(store, view, keys)
            took, costs = measured.rows(label)
            assert lists == (label == "cold start")
            name = f"{label}, {count:,} keys"
            rows += [_row(name, took, within_ms=None if lists else RECONNECT_MS), *costs]
        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(ROUNDS):
            for side in ("nats-py", "natsctl"):
                await nats.connection.wait_connected()
                lost.clear()
                with nats.connection.on_lost(lambda _: lost.set()):
                    server.kill()
                    await lost.wait()
                began = time.monotonic()
                await server.start()
                times["nats-server"].append(1000 * (time.monotonic() - began))
                measured = Measured(server)
                if side == "nats-py":
                    await _trusting(server.url)
                else:
                    assert not await _watched(store, view, keys)
                took, costs = measured.rows(f"{side} after kill -9")
                times[side].append(took)
        after = f"after kill -9, {count:,} keys"
        rows += [
            shown(f"nats-server until it's ready {after}", "ms", times["nats-server"]),
            shown(f"nats-py until the last message {after}", "ms", times["nats-py"]),
            limited(f"reconnect {after}", "ms", times["natsctl"], at_most=RECONNECT_MS),
            *costs,
        ]
        measured = Measured(server)
        assert len(await names(store._bucket, ">")) == count  # noqa: SLF001 - what a comparison lists
        took, costs = measured.rows("list of names")
        rows += [_row(f"list of names, {count:,} keys", took), *costs]
    return rows


async def _trusting(url: str) -> None:
    """Connect with nats-py, and continue at the last sequence without a proof."""
    async with plain_jetstream(url) as jetstream:
        stream = f"KV_{ITEMS.bucket}"
        last = (await jetstream.stream_info(stream)).state.last_seq
        config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=last)
        subject = f"$KV.{ITEMS.bucket}.>"
        subscription = await jetstream.subscribe(
            subject, stream=stream, ordered_consumer=True, config=config
        )
        await subscription.next_msg(timeout=60)


async def _watched(store: KvStore, view: object, keys: dict[str, None]) -> bool:
    """Watch until the reader has caught up; return whether it got a list."""
    lists = False
    async with store.watch(view) as events:  # type: ignore[arg-type]  # a view of these keys
        async for event in events:
            match event:
                case Listing():
                    lists = True
                case Batch(states):
                    keys.update((stored.key, None) for stored in states)
                case Applied(stored):
                    keys[stored.key] = None
                case Listed():
                    following = asyncio.ensure_future(anext(events))
                    await asyncio.sleep(0)  # it has taken the end of the list
                    following.cancel()
                    await asyncio.wait({following})
                    break
    return lists


def _row(label: str, ms: float, *, within_ms: float | None = None) -> Row:
    if within_ms is None:
        return shown(label, "ms", [ms])
    return limited(label, "ms", [ms], at_most=within_ms)
