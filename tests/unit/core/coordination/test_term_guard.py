"""A coroutine takes its next step only while it may."""

import asyncio

import pytest

from natsctl.core.coordination.term_guard import GuardedSteps


class Switch:
    def __init__(self) -> None:
        self.on = True


async def later(told: list[str], *, pause_s: float = 1.0) -> str:
    told.append("begun")
    try:
        await asyncio.sleep(pause_s)
        told.append("went on")
        return "result"
    finally:
        told.append("ended")


async def test_what_may_goes_on_to_its_end() -> None:
    told: list[str] = []
    assert await GuardedSteps(later(told), lambda: True) == "result"
    assert told == ["begun", "went on", "ended"]


async def test_what_may_not_does_not_begin() -> None:
    told: list[str] = []
    with pytest.raises(asyncio.CancelledError):
        await GuardedSteps(later(told), lambda: False)
    assert told == []


async def test_what_may_no_more_is_cancelled_where_it_would_go_on() -> None:
    told: list[str] = []
    switch = Switch()
    asyncio.get_running_loop().call_later(0.5, setattr, switch, "on", False)
    with pytest.raises(asyncio.CancelledError):
        await GuardedSteps(later(told), lambda: switch.on)
    assert told == ["begun", "ended"]
    assert asyncio.get_running_loop().time() == 1.0


async def test_one_that_does_not_heed_it_is_cancelled_again_at_each_step() -> None:
    cancelled = 0

    async def stubborn() -> None:
        nonlocal cancelled
        while cancelled < 3:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                cancelled += 1

    switch = Switch()
    asyncio.get_running_loop().call_later(0.5, setattr, switch, "on", False)
    await GuardedSteps(stubborn(), lambda: switch.on)
    assert cancelled == 3


async def test_errors_of_what_it_waits_for_reach_it_and_its_own_come_out() -> None:
    async def asks(future: "asyncio.Future[None]") -> None:
        try:
            await future
        except ValueError as error:
            raise KeyError("translated") from error

    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(1, future.set_exception, ValueError("asked"))
    with pytest.raises(KeyError, match="translated"):
        await GuardedSteps(asks(future), lambda: True)


async def test_it_can_be_cancelled_like_any_other() -> None:
    told: list[str] = []

    async def run() -> None:
        await GuardedSteps(later(told), lambda: True)

    task = asyncio.create_task(run())
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert told == ["begun", "ended"]


async def test_it_has_a_time_limit_like_any_other() -> None:
    told: list[str] = []

    async def limited() -> None:
        async with asyncio.timeout(1):
            await later(told, pause_s=5)

    with pytest.raises(TimeoutError):
        await GuardedSteps(limited(), lambda: True)
    assert told == ["begun", "ended"]
