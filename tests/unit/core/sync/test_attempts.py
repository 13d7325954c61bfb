"""A sync in a term begins only while the term lasts, and holds its key from begin to end."""

import asyncio
from pathlib import Path

import pytest

from natsctl.core.coordination.assignment import NONE
from natsctl.core.coordination.term import Leadership, current_leadership
from natsctl.core.pausing.claims import ClaimedKeys
from natsctl.core.sync.attempts import Attempts
from natsctl.core.sync.calls import Unfinished
from natsctl.core.sync.steps import Ended
from natsctl.core.workqueue import Failed, Outcome, Synced, WorkQueue
from tests.support.places import Ready, place, take_nowait

TERM_S = 10.0


class Syncs:
    """A handler that waits for *wait_s* seconds, and then raises *error* or returns 3.0."""

    def __init__(self, wait_s: float = 0.0, error: Exception | None = None) -> None:
        self.events: list[str] = []
        self._wait_s = wait_s
        self._error = error

    async def __call__(self, _key: str) -> float | None:
        self.events.append("began")
        try:
            if self._wait_s:
                await asyncio.sleep(self._wait_s)
                self.events.append("waited")
            if self._error is not None:
                raise self._error
            return 3.0
        finally:
            self.events.append("ended")


@pytest.fixture
async def leadership() -> Leadership:
    """A term in which no key is assigned to this process, so that it has only held keys."""
    clock = asyncio.get_running_loop().time
    leadership = Leadership("apps", clock)
    leadership.begin(1, until=clock() + TERM_S, assignment=NONE)
    current_leadership.set(leadership)
    return leadership


@pytest.fixture
async def queue() -> WorkQueue[str]:
    """A queue whose key `a` a worker has taken."""
    queue = WorkQueue[str]()
    queue.offer("a")
    take_nowait(queue)
    return queue


async def outcome_of(outcome: Outcome | Unfinished[Outcome]) -> Outcome:
    return await outcome if isinstance(outcome, Unfinished) else outcome


@pytest.mark.parametrize("wait_s", [0.0, 1.0])
async def test_a_sync_in_a_term_returns_its_result_and_releases_its_key(
    leadership: Leadership, queue: WorkQueue[str], wait_s: float
) -> None:
    outcome = Attempts(Syncs(wait_s), queue, leadership).start("a")
    assert leadership.has("a") == bool(wait_s)
    assert await outcome_of(outcome) == Synced(3.0)
    assert not leadership.has("a")


@pytest.mark.parametrize("wait_s", [0.0, 1.0])
async def test_a_failed_sync_in_a_term_releases_its_key(
    leadership: Leadership, queue: WorkQueue[str], wait_s: float
) -> None:
    error = ValueError("no")
    outcome = Attempts(Syncs(wait_s, error), queue, leadership).start("a")
    assert await outcome_of(outcome) == Failed(error)
    assert not leadership.has("a")


async def test_no_sync_begins_after_the_term(leadership: Leadership, queue: WorkQueue[str]) -> None:
    syncs = Syncs()
    await asyncio.sleep(TERM_S)
    with pytest.raises(asyncio.CancelledError):
        Attempts(syncs, queue, leadership).start("a")
    assert syncs.events == []
    assert isinstance(place(queue, "a"), Ready)


async def test_a_sync_that_waits_is_cancelled_at_its_first_step_after_the_term(
    leadership: Leadership, queue: WorkQueue[str]
) -> None:
    syncs = Syncs(wait_s=TERM_S + 1)
    with pytest.raises(asyncio.CancelledError):
        await outcome_of(Attempts(syncs, queue, leadership).start("a"))
    assert syncs.events == ["began", "ended"]
    assert isinstance(place(queue, "a"), Ready)


async def test_a_handler_may_return_work_that_has_ended(
    leadership: Leadership, queue: WorkQueue[str]
) -> None:
    for term in (None, leadership):
        outcome = Attempts(lambda _key: Ended[float | None](3.0), queue, term).start("a")
        assert outcome == Synced(3.0)
    assert await Ended(3.0) == 3.0


async def test_a_key_is_noted_as_held_before_its_sync_begins(
    queue: WorkQueue[str], tmp_path: Path
) -> None:
    with ClaimedKeys(tmp_path).of_loop("apps.0", 1) as claims:
        begun: list[bool] = []

        async def sync(_key: str) -> None:
            begun.append(claims[0].busy)

        Attempts(sync, queue, None, claims[0]).start("a")
        assert begun == [True]
