"""A running controller with real NATS servers, and the clients of a test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

import natsctl
from natsctl import Controller, ControllerRuntime
from tests.support.clients.nats_admin import FAILURES, Admin, Refused
from tests.support.controllers.copy_controller import COPIES, THINGS, Copies
from tests.support.eventually import eventually
from tests.support.faults.invariants import Checker
from tests.support.faults.random_writer import ANSWER_S, User

SILENCES = ("the consumer sent nothing for", "stale connection")
SELDOM_S = 3600.0  # only watches detect changes, not comparisons of key sets


class NatsTestBed:
    """The controller and the clients of a test. Created by `nats_test_bed`."""

    def __init__(
        self, admin: Admin, hasty: Admin, user: User, controller: Copies, connection: Any
    ) -> None:
        self.admin = admin
        self.hasty = hasty  # for requests that are repeated if they fail
        self.user = user
        self.controller = controller
        self.sights = controller.sights
        self.connection = connection
        self.checker = Checker(admin, controller)

    @property
    def runtime(self) -> ControllerRuntime:
        return self.controller.runtime

    @property
    def restarts(self) -> int:
        return self.runtime.status().watch_restarts

    async def settled(self) -> None:
        """Wait until all copies match, and check that no copy was deleted wrongly."""
        await self.checker.settled()
        await self.checker.only_deleted(self.user.mortal, self.user.meddled)

    @asynccontextmanager
    async def breaking(self, times: int = 1) -> AsyncIterator[None]:
        """Break watches in the body, and wait at the end for this many restarts."""
        goal = self.restarts + times
        yield
        await eventually(lambda: self.restarts >= goal)

    async def break_watches(self, fault: Callable[[], Awaitable[None]]) -> None:
        """Cause the fault until both watches have restarted.

        A fault does not break a watch that is about to start.
        """
        goal = self.restarts + 2
        while self.restarts < goal:
            await fault()
            with suppress(AssertionError):
                await eventually(lambda: self.restarts >= goal, within_s=5.0)

    async def broken(self) -> None:
        """Wait until a watch restarts once more."""
        async with self.breaking():
            pass

    async def swept(self) -> bool:
        """Return whether a GC cycle has recorded existing things."""
        with suppress(*FAILURES):
            entry = await self.admin.entry("natsctl", f"gc.{self.controller.name}")
            return bool(msgspec.json.decode(entry.value)["populated"])
        return False

    async def deleted_copies(self) -> set[str]:
        return await self.admin.markers(COPIES)

    async def watched(self) -> None:

        async def both() -> bool:
            return {f"KV_{THINGS}", f"KV_{COPIES}"} <= (await self.admin.consumers()).keys()

        await eventually(both)

    async def lost(self) -> None:
        """Wait until the controller has detected the loss of its connection."""
        await eventually(lambda: not self.connection.connected)


@asynccontextmanager
async def nats_test_bed(
    url: str,
    *,
    through: str | None = None,
    copies: type[Copies] = Copies,
    seed: int = 0,
    keys: int = 30,
    verify_s: float = SELDOM_S,
) -> AsyncIterator[NatsTestBed]:
    """Run a controller with all *keys* written and synced.

    *through* is the URL of the controller, for example of a proxy. After a successful test, the
    controller stops and no consumer may be left.
    """
    controller = copies()
    async with Admin(url) as admin, Admin(url, answer_s=ANSWER_S) as hasty:
        user = User(admin, seed=seed, keys=keys)
        async with running(controller, through or url, verify_s=verify_s) as connection:
            bed = NatsTestBed(admin, hasty, user, controller, connection)
            await bed.checker.begin()
            await user.put_all()
            await bed.settled()
            yield bed
        await eventually(lambda: no_consumers(admin))


@asynccontextmanager
async def running(
    controller: Controller, url: str, *, verify_s: float = SELDOM_S
) -> AsyncIterator[Any]:
    """Run the controller during the context. An error of the controller fails the test."""
    async with natsctl.connect(url, wait=True, verify_s=verify_s) as nats:
        runtime = ControllerRuntime(controller, nats=nats)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(runtime.run(), name="runtime")
            await runtime.synced.wait()
            try:
                yield nats.connection
            except BaseException:
                task.cancel()
                raise
            runtime.stop()


def breaks(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines of watches that broke, except for a server that was silent.

    The server is silent if the machine stops it for more than a second.
    """
    lines = [line for line in caplog.text.splitlines() if "watch broke" in line]
    return [line for line in lines if not any(silence in line for silence in SILENCES)]


async def no_consumers(admin: Admin) -> bool:
    """Assert that the server has no consumer. Returns False if the server is down."""
    with suppress(*FAILURES):
        remaining = await admin.consumers()
        assert not remaining, f"consumers are left: {remaining}"
        return True
    return False


async def delete_consumers(admin: Admin) -> None:
    """Delete every consumer as an administrator may.

    A watch that broke may have deleted its consumer first.
    """
    for stream, names in (await admin.consumers()).items():
        for name in names:
            with suppress(Refused):
                await admin.api(f"CONSUMER.DELETE.{stream}.{name}")
