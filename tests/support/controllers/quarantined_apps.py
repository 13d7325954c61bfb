"""Apps whose syncs kill processes, and the records of deaths and failures."""

import asyncio
import multiprocessing
import os
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from natsctl import kv
from natsctl.core.environment import within
from natsctl.core.quarantine import LENGTH, SLOT, ClaimedKeys
from natsctl.testing import Harness, MemoryStores, running
from tests.support.controllers.app_controller import Apps, app_client

DEAD = 9  # an exit status
PAUSES = kv(bytes, bucket="natsctl")  # has the records of deaths and failures
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])  # a death then takes milliseconds


def on_machine(directory: Path, **changes: object) -> AbstractContextManager[object]:
    """Let the processes in the context note their keys in this state directory."""
    return within(claims=ClaimedKeys(directory), **changes)


def dead(directory: Path, key: str, number: int, loop: str = "apps.0") -> None:
    """Write what process *number* leaves if it dies while it syncs the key alone."""
    left = len(key).to_bytes(LENGTH, "little") + key.encode()
    (directory / f"{loop}.{number}-dead.held").write_bytes(left.ljust(SLOT, b"\0"))


class Stuck(Apps):
    """A controller that never ends a sync, so that no sync clears the deaths of its key."""

    name = "apps"
    sync_timeout_s = 3600.0

    async def sync_handler(self, key: str) -> float | None:
        await asyncio.Event().wait()
        return None


def die(directory: Path, *keys: str, loop: str = "apps.0") -> None:
    loops: dict[str, list[str]] = {}
    for key in keys:
        before, _, name = key.rpartition(":")
        loops.setdefault(before or loop, []).append(name)
    process = PROCESSES.Process(target=sync_and_die, args=(directory, loops))
    process.start()
    process.join()
    assert process.exitcode == DEAD


def sync_and_die(directory: Path, loops: dict[str, list[str]]) -> None:
    claims, stack = ClaimedKeys(directory), ExitStack()
    for name, keys in loops.items():
        for claim, key in zip(
            stack.enter_context(claims.of_loop(name, len(keys))), keys, strict=True
        ):
            claim.hold(key)
    os._exit(DEAD)


async def prepared(*keys: str) -> MemoryStores:
    """Return stores in which the controller has synced apps: shop and market by default."""
    stores = MemoryStores()
    async with running(Apps(), stores=stores) as harness:
        client = app_client(harness)
        for key in keys or ("shop", "market"):
            await client.app(key)
        await harness.run_until_idle()
    return stores


def syncs_of(harness: Harness) -> list[str]:
    controller = harness.runtime.controller
    assert isinstance(controller, Apps)
    return controller.syncs


async def deaths(stores: MemoryStores) -> list[str]:
    return [key for key in list(stores.store(PAUSES).keys()) if ".deaths." in key]


def failing_records(stores: MemoryStores) -> list[str]:
    """Return the names of the records of failing keys."""
    return [name for name in stores.store(PAUSES).keys() if ".failing." in name]  # noqa: SIM118 - no dict
