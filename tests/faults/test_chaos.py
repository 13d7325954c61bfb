"""A controller converges after random faults under random writes.

The seed selects the faults and their times.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from tests.support.clients.nats_admin import FAILURES
from tests.support.controllers.copy_controller import COPIES, THINGS, copies_of
from tests.support.faults.nats_test_bed import NatsTestBed, delete_consumers, nats_test_bed
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.tcp_proxy import CutProxy


class Chaos:
    """Random faults of a server and of the network to it."""

    def __init__(self, bed: NatsTestBed, server: NatsServer, proxy: CutProxy, seed: int) -> None:
        self._bed = bed
        self._server = server
        self._proxy = proxy
        self._random = random.Random(seed)

    async def cause_fault(self) -> None:
        """Cause one random fault for a while. A failed request ends it early."""
        with suppress(*FAILURES):
            await self._random.choice(self._faults())()
        await self._while(0.3)

    def _faults(self) -> list[Callable[[], Awaitable[None]]]:
        return [self._killed, self._paused, self._cut, self._frozen, self._consumers, self._key]

    async def _killed(self) -> None:
        self._server.kill()
        await self._while(1.0)
        await self._server.start()

    async def _paused(self) -> None:
        self._server.pause()
        await self._while(4.0)
        self._server.resume()

    async def _cut(self) -> None:
        self._proxy.cut()
        await self._while(1.0)
        await self._proxy.heal()

    async def _frozen(self) -> None:
        self._proxy.freeze()
        await self._while(4.0)
        self._proxy.thaw()

    async def _consumers(self) -> None:
        await delete_consumers(self._bed.admin)

    async def _key(self) -> None:
        """Purge a primary and a secondary, so that no delete marker remains."""
        await self._bed.admin.purge(THINGS, self._random.choice(sorted(self._bed.user.mortal)))
        name = f"{self._random.choice(self._bed.user.keys)}.0"
        self._bed.user.meddled.add(name)
        await self._bed.admin.purge(COPIES, name)

    async def _while(self, limit_s: float) -> None:
        await asyncio.sleep(self._random.uniform(0.0, limit_s))


LONG = (pytest.mark.long, pytest.mark.timeout(900))


@pytest.mark.parametrize(
    ("seed", "faults", "keys"),
    [
        *((seed, 8, 60) for seed in (1, 2)),
        *(pytest.param(seed, 60, 1_000, marks=LONG) for seed in range(10, 16)),
    ],
)
async def test_a_controller_converges_after_random_faults(
    nats_server: NatsServer, cut_proxy: CutProxy, seed: int, faults: int, keys: int
) -> None:
    async with nats_test_bed(
        nats_server.url,
        through=cut_proxy.url,
        copies=copies_of(history=1 + 4 * (seed % 2)),
        seed=seed,
        keys=keys,
        verify_s=1.0,
    ) as bed:
        chaos = Chaos(bed, nats_server, cut_proxy, seed)
        async with bed.user.writing():
            for _ in range(faults):
                await chaos.cause_fault()
        await bed.settled()
