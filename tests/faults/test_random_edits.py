"""Daemons that share their keys stay equal under random edits while members and servers die.

Nobody helps: at the end, no key is quarantined, garbage collection is not held, and an object
without an owner goes.
"""

import asyncio
import itertools
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest

from tests.support.cli.forked_process import ForkedProcess, forked
from tests.support.clients.nats_admin import FAILURES, Admin
from tests.support.controllers.copy_controller import COPIES, THINGS
from tests.support.eventually import eventually
from tests.support.faults.invariants import Checker
from tests.support.faults.random_writer import User
from tests.support.servers.nats_server import NatsCluster, NatsServer

TTL_S = 5.0
WITHIN_S = 180.0
LONG_S = 20 * 60.0
KEPT_MEMBERS = 3
COMMAND = (
    *("run", "-c", "tests.support.controllers.copy_controller:Copies"),
    *("--shard", "--workers", "8", "--lease-ttl", f"{TTL_S:g}"),
)

Fault = Callable[[], Awaitable[None]]


class Members:
    """The processes that share the keys of one controller."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        self._url = url
        self._folder = folder
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._running: list[tuple[ForkedProcess, Path]] = []

    async def join(self) -> None:
        """Start one more process, and wait until it shares the keys."""
        file = self._folder / f"member{next(self._numbers)}.log"
        state = str(self._folder / "state")
        with file.open("wb") as log:
            process = await forked(*COMMAND, "--state-dir", state, "--server", self._url, log=log)
        self._running.append((process, file))
        await eventually(lambda: "sharing keys" in file.read_text(), within_s=WITHIN_S)

    async def replace(self, sent: signal.Signals) -> None:
        """End a process, and let another one join."""
        self.check()
        process, file = self._running.pop(self._random.randrange(len(self._running)))
        process.send_signal(sent)
        status = 0 if sent is signal.SIGTERM else -sent
        assert await process.wait() == status, file.read_text()[-2000:]
        await self.join()

    async def end(self) -> None:
        for process, _ in self._running:
            process.kill()
            await process.wait()

    def check(self) -> None:
        """Assert that no process has ended by itself."""
        for process, file in self._running:
            assert process.returncode is None, file.read_text()[-5000:]


class Scene:
    """The members, a user who edits at random, and the checks at the end."""

    def __init__(self, admin: Admin, members: Members, *, seed: int, keys: int) -> None:
        self.admin = admin
        self.members = members
        self.user = User(admin, seed=seed, keys=keys)
        self.checker = Checker(admin)
        self._probes = itertools.count()

    async def works(self) -> None:
        """Wait until a new thing gets its copy."""
        key = f"probe{next(self._probes)}"
        thing = {"spec": {"text": key, "copies": 1}}

        async def put() -> bool:
            with suppress(*FAILURES):
                return await self.user.admin.put(THINGS, key, thing) > 0
            return False

        async def copied() -> bool:
            with suppress(*FAILURES):
                return not (await self.user.admin.entry(COPIES, f"{key}.0")).marker
            return False

        await eventually(put, within_s=WITHIN_S)
        await eventually(copied, within_s=WITHIN_S)

    async def ends_equal(self) -> None:
        """Check everything, without the help of a person."""
        self.members.check()
        await self.checker.settled(within_s=WITHIN_S)
        await self.checker.only_deleted(self.user.mortal, self.user.meddled)
        record = await self.admin.entry("natsctl", "gc.copies")
        assert msgspec.json.decode(record.value)["held"] == ""
        copy = (await self.admin.entry(COPIES, "probe0.0")).value
        await self.admin.put(COPIES, "lost.0", msgspec.Raw(copy.replace(b"probe0", b"lost")))
        await eventually(self._is_collected, within_s=WITHIN_S)

    async def _is_collected(self) -> bool:
        return (await self.admin.entry(COPIES, "lost.0")).marker


@asynccontextmanager
async def scene(url: str, folder: Path, *, seed: int, keys: int) -> AsyncIterator[Scene]:
    members = Members(url, folder, seed)
    async with Admin(url) as admin:
        acting = Scene(admin, members, seed=seed, keys=keys)
        try:
            for _ in range(KEPT_MEMBERS):
                await members.join()
            await acting.checker.begin()
            await acting.user.put_all()
            await acting.checker.settled(within_s=WITHIN_S)
            yield acting
        finally:
            await members.end()


async def test_sharing_daemons_end_equal_after_kills_of_members_and_restarts_of_the_server(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async def restart() -> None:
        await nats_server.stop()
        await nats_server.start()

    async def crash() -> None:
        nats_server.kill()
        await nats_server.start()

    async with scene(nats_server.url, tmp_path, seed=1, keys=60) as acting:
        kill = partial(acting.members.replace, signal.SIGKILL)
        stop = partial(acting.members.replace, signal.SIGTERM)
        async with acting.user.writing():
            for fault in (kill, restart, stop, crash, restart):
                await fault()
                await acting.works()
        await acting.ends_equal()


@pytest.mark.long
@pytest.mark.timeout(LONG_S + 900)
async def test_sharing_daemons_of_a_cluster_end_equal_after_twenty_minutes_of_kills(
    nats_cluster: NatsCluster, tmp_path: Path
) -> None:
    chosen = random.Random(7)

    async def outage(end: Callable[[NatsServer], Awaitable[None]]) -> None:
        node = chosen.choice(nats_cluster.nodes)
        await end(node)
        await asyncio.sleep(chosen.uniform(0.0, 3.0))
        await node.start()
        await nats_cluster.settled()

    async def crash(node: NatsServer) -> None:
        node.kill()

    async def restart_all() -> None:
        for node in nats_cluster.nodes:
            await node.stop()
        await asyncio.gather(*(node.start() for node in nats_cluster.nodes))
        await nats_cluster.settled()

    async with scene(nats_cluster.url, tmp_path, seed=7, keys=3_000) as acting:
        faults: list[Fault] = [
            partial(acting.members.replace, signal.SIGKILL),
            partial(acting.members.replace, signal.SIGTERM),
            lambda: outage(crash),
            lambda: outage(NatsServer.stop),
            restart_all,
        ]
        clock = asyncio.get_running_loop().time
        end = clock() + LONG_S
        async with acting.user.writing():
            while clock() < end:
                await chosen.choice(faults)()
                await acting.works()
        await acting.ends_equal()
