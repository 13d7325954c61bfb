"""A sync in a term begins only while the term lasts, and its key stays until its end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from natsctl import Drop
from natsctl.core.coordination.term import Leadership, current_leadership
from natsctl.core.loop import SyncLoop
from natsctl.core.pauses import Pausing
from natsctl.core.quarantine import ClaimedKeys, current_claims

TERM_S = 10.0


class Syncs:
    """A handler that waits for *wait_s* seconds, and then raises *error* or returns None."""

    def __init__(self, wait_s: float = 0.0, error: Exception | None = None) -> None:
        self.events: list[str] = []
        self.leads: list[bool] = []
        self._wait_s = wait_s
        self._error = error

    async def __call__(self, key: str) -> float | None:
        self.events.append("began")
        try:
            if self._wait_s:
                await asyncio.sleep(self._wait_s)
                self.events.append("waited")
            leadership = current_leadership.get()
            assert leadership is not None
            self.leads.append(leadership.has(key))
            if self._error is not None:
                raise self._error
        finally:
            self.events.append("ended")
        return None


@asynccontextmanager
async def term(
    handler: Callable[[str], Awaitable[float | None]],
) -> AsyncIterator[tuple[SyncLoop[str], Leadership]]:
    """Run a loop in a term in which no key is assigned to this process: it has only held keys."""
    clock = asyncio.get_running_loop().time
    leadership = Leadership("apps", clock)
    leadership.begin(1, until=clock() + TERM_S, mask=0)
    token = current_leadership.set(leadership)
    loop = SyncLoop(handler, retry=lambda _error, _failures: Drop())

    async def ready() -> None:
        pass

    task = asyncio.create_task(loop.run(ready))
    current_leadership.reset(token)
    await asyncio.sleep(0.1)
    try:
        yield loop, leadership
    finally:
        loop.queue.shut_down(drain=False)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("error", [None, ValueError("no")], ids=["succeeds", "fails"])
@pytest.mark.parametrize("wait_s", [0.0, 1.0])
async def test_a_key_is_not_given_away_before_its_sync_has_ended(
    wait_s: float, error: Exception | None
) -> None:
    syncs = Syncs(wait_s, error)
    async with term(syncs) as (loop, leadership):
        loop.queue.offer("a")
        await asyncio.sleep(2)
        assert syncs.leads == [True]
        assert not leadership.has("a")
        assert loop.queue.idle


async def test_no_sync_begins_after_the_term() -> None:
    syncs = Syncs()
    async with term(syncs) as (loop, _):
        await asyncio.sleep(TERM_S)
        loop.queue.offer("a")
        await asyncio.sleep(1)
        assert syncs.events == []
        work = loop.queue.work("a")
        assert work is not None


async def test_a_sync_that_waits_is_cancelled_at_its_first_step_after_the_term() -> None:
    syncs = Syncs(wait_s=TERM_S + 1)
    async with term(syncs) as (loop, _):
        loop.queue.offer("a")
        await asyncio.sleep(TERM_S + 5)
        assert syncs.events == ["began", "ended"]


async def test_a_key_is_noted_as_claimed_before_its_sync_begins(tmp_path: Path) -> None:
    claims, begun = ClaimedKeys(tmp_path), list[bool]()
    token = current_claims.set(claims)
    pausing = Pausing("apps")
    current_claims.reset(token)

    async def sync(_key: str) -> None:
        begun.append(claims.busy)

    async def ready() -> None:
        pass

    loop = SyncLoop(sync, pausing=pausing)
    loop.paused.quarantine.name = "apps.0"
    loop.queue.offer("shop")
    task = asyncio.create_task(loop.run(ready))
    await asyncio.sleep(1)
    assert (begun, claims.busy) == ([True], False)
    loop.queue.shut_down(drain=False)
    await task
