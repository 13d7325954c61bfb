"""A guarded coroutine runs its next step only while its condition holds; writes need a term."""

import asyncio

import pytest

from natsctl.core.coordination.assignment import OnlyKeys
from natsctl.core.coordination.installation import INSTALLATION
from natsctl.core.coordination.term import Leadership
from natsctl.core.coordination.term_guard import GuardedSteps, TermGuard
from natsctl.errors import NotLeadingError
from tests.support.stores.sample_objects import THINGS


class Switch:
    def __init__(self) -> None:
        self.on = True


async def pause(events: list[str], *, pause_s: float = 1.0) -> str:
    events.append("started")
    try:
        await asyncio.sleep(pause_s)
        events.append("resumed")
        return "result"
    finally:
        events.append("ended")


async def test_a_permitted_coroutine_runs_to_its_end() -> None:
    events: list[str] = []
    assert await GuardedSteps(pause(events), lambda: True) == "result"
    assert events == ["started", "resumed", "ended"]


async def test_a_coroutine_that_loses_permission_is_cancelled_at_its_next_step() -> None:
    events: list[str] = []
    switch = Switch()
    asyncio.get_running_loop().call_later(0.5, setattr, switch, "on", False)
    with pytest.raises(asyncio.CancelledError):
        await GuardedSteps(pause(events), lambda: switch.on)
    assert events == ["started", "ended"]
    assert asyncio.get_running_loop().time() == 1.0


async def test_a_coroutine_that_ignores_the_cancellation_is_cancelled_again() -> None:
    cancelled = 0

    async def ignore_cancellation() -> None:
        nonlocal cancelled
        while cancelled < 3:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                cancelled += 1

    switch = Switch()
    asyncio.get_running_loop().call_later(0.5, setattr, switch, "on", False)
    await GuardedSteps(ignore_cancellation(), lambda: switch.on)
    assert cancelled == 3


async def test_errors_of_an_awaited_future_reach_the_coroutine_and_its_own_are_raised() -> None:
    async def wait_for(future: "asyncio.Future[None]") -> None:
        try:
            await future
        except ValueError as error:
            raise KeyError("translated") from error

    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(1, future.set_exception, ValueError("no"))
    with pytest.raises(KeyError, match="translated"):
        await GuardedSteps(wait_for(future), lambda: True)


async def test_a_guarded_coroutine_can_be_cancelled() -> None:
    events: list[str] = []

    async def run() -> None:
        await GuardedSteps(pause(events), lambda: True)

    task = asyncio.create_task(run())
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert events == ["started", "ended"]


async def test_a_guarded_coroutine_can_have_a_time_limit() -> None:
    events: list[str] = []

    async def limited() -> None:
        async with asyncio.timeout(1):
            await pause(events, pause_s=5)

    with pytest.raises(TimeoutError):
        await GuardedSteps(limited(), lambda: True)
    assert events == ["started", "ended"]


async def test_a_coroutine_that_ends_at_once_needs_no_permission() -> None:
    async def work() -> int:
        return 42

    assert await GuardedSteps(work(), lambda: False) == 42


async def test_a_coroutine_receives_the_results_of_its_futures() -> None:
    async def work() -> str:
        return await future

    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(1, future.set_result, "done")
    assert await GuardedSteps(work(), lambda: True) == "done"


class TestTermGuard:
    """A write is sent only in a term."""

    TERM_S = 10.0

    @pytest.fixture
    async def leadership(self) -> Leadership:
        return Leadership("apps", asyncio.get_running_loop().time)

    @pytest.fixture
    async def guard(self, leadership: Leadership) -> TermGuard:
        leadership.begin(1, until=self.TERM_S, assignment=OnlyKeys(["a"]))
        return TermGuard(leadership)

    async def test_a_write_in_a_term_is_sent(self, guard: TermGuard) -> None:
        async def write() -> int:
            await asyncio.sleep(1)
            return 7

        assert await guard.send(THINGS, write) == 7

    async def test_no_write_is_sent_after_the_term(self, guard: TermGuard) -> None:
        sent: list[str] = []

        async def write() -> None:
            sent.append("write")

        await asyncio.sleep(self.TERM_S)
        with pytest.raises(NotLeadingError):
            await guard.send(THINGS, write)
        assert sent == []

    async def test_a_write_that_waits_when_the_term_ends_is_cancelled(
        self, guard: TermGuard
    ) -> None:
        sent: list[str] = []

        async def write() -> None:
            await asyncio.sleep(self.TERM_S)
            sent.append("write")

        with pytest.raises(asyncio.CancelledError):
            await guard.send(THINGS, write)
        assert sent == []

    async def test_a_write_of_no_kind_needs_a_term(self, guard: TermGuard) -> None:
        guard.check(None)
        await asyncio.sleep(self.TERM_S)
        with pytest.raises(NotLeadingError):
            guard.check(None)

    async def test_the_installation_may_be_written_without_a_term(
        self, leadership: Leadership
    ) -> None:
        TermGuard(leadership).check(INSTALLATION)

    async def test_a_process_records_its_own_keys_only(self, guard: TermGuard) -> None:
        assert guard.may_record("a")
        assert not guard.may_record("b")

    async def test_a_process_records_nothing_after_its_term(self, guard: TermGuard) -> None:
        await asyncio.sleep(self.TERM_S)
        assert not guard.may_record("a")
