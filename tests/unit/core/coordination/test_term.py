"""Terms of leadership: work starts with a term and ends with it."""

import asyncio
from collections.abc import Hashable

import pytest

from natsctl.core.coordination.assignment import NONE, Assignment, OnlyKeys
from natsctl.core.coordination.term import (
    Leadership,
    current_leadership,
    leading,
    led,
    shares_keys,
)
from natsctl.errors import NotLeadingError


@pytest.fixture
async def leadership() -> Leadership:
    return Leadership("apps", asyncio.get_running_loop().time)


class Work:
    """Records when it starts and ends."""

    def __init__(self, pause_s: float = 100.0) -> None:
        self.events: list[str] = []
        self.over = asyncio.Event()
        self._pause_s = pause_s

    async def run(self) -> None:
        self.events.append("started")
        try:
            await asyncio.sleep(self._pause_s)
            self.events.append("done")
        finally:
            self.events.append("ended")

    async def ended(self) -> None:
        await self.over.wait()


async def test_a_term_ends_when_its_time_is_over(leadership: Leadership) -> None:
    assert not leadership.leads
    leadership.begin(1, until=10)
    await asyncio.sleep(9)
    leadership.check()
    leadership.extend(until=20)
    await asyncio.sleep(10)
    leadership.check()
    await asyncio.sleep(1)
    with pytest.raises(NotLeadingError, match="apps"):
        leadership.check()


async def test_an_expired_term_cannot_be_extended(leadership: Leadership) -> None:
    leadership.begin(1, until=10)
    await asyncio.sleep(10)
    with pytest.raises(NotLeadingError, match="apps"):
        leadership.extend(until=20)
    assert not leadership.leads


async def test_a_lost_term_ends_at_once_and_a_term_after_step_down_expires(
    leadership: Leadership,
) -> None:
    leadership.begin(1, until=10)
    leadership.step_down()
    assert (leadership.leads, leadership.epoch) == (True, None)
    leadership.begin(2, until=10)
    leadership.lose()
    assert (leadership.leads, leadership.epoch) == (False, None)


async def test_work_starts_with_each_term_and_is_cancelled_at_its_end(
    leadership: Leadership,
) -> None:
    work = Work()
    task = asyncio.create_task(leadership.lead(work.run, work.ended))
    await asyncio.sleep(1)
    assert (leadership.sought.is_set(), work.events) == (True, [])
    for epoch in (1, 2):
        leadership.begin(epoch, until=1e9)
        await asyncio.sleep(1)
        assert work.events == ["started"]
        leadership.step_down()
        await leadership.quiet()
        assert work.events == ["started", "ended"]
        work.events.clear()
    work.over.set()
    await task


async def test_running_work_is_finished_at_the_end(leadership: Leadership) -> None:
    work = Work()
    task = asyncio.create_task(leadership.lead(work.run, work.ended))
    leadership.begin(1, until=1e9)
    await asyncio.sleep(1)
    work.over.set()
    await task
    assert work.events == ["started", "done", "ended"]


async def test_an_error_of_the_work_is_raised(leadership: Leadership) -> None:
    async def fail() -> None:
        raise ValueError("bad")

    leadership.begin(1, until=1e9)
    with pytest.raises(ValueError, match="bad"):
        await leadership.lead(fail, Work().ended)


async def test_a_cancelled_lead_leaves_no_work_running(leadership: Leadership) -> None:
    work = Work()
    task = asyncio.create_task(leadership.lead(work.run, work.ended))
    leadership.begin(1, until=1e9)
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait((task,))
    assert work.events == ["started", "ended"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_without_an_election_every_process_leads(leadership: Leadership) -> None:
    await led()
    assert leading()
    current_leadership.set(leadership)
    assert not leading()
    waiting = asyncio.create_task(led())
    await asyncio.sleep(1)
    assert not waiting.done()
    leadership.begin(1, until=1e9)
    await waiting
    assert leading()


class Keys:
    def __init__(self, keys: str) -> None:
        self.keys = keys

    def has(self, key: Hashable) -> bool:
        return str(key) in self.keys


async def test_a_listener_gets_the_current_assignment_and_every_change(
    leadership: Leadership,
) -> None:
    assignments: list[Assignment] = []
    first, second = Keys("ab"), Keys("b")
    with leadership.moving(assignments.append):
        leadership.begin(1, until=1e9, assignment=first)  # type: ignore[arg-type]
        leadership.move(second)  # type: ignore[arg-type]
        leadership.lose()
    leadership.begin(2, until=1e9)
    assert assignments == [NONE, first, second, NONE]


async def test_a_key_in_work_is_kept_until_the_end_of_the_term(
    leadership: Leadership,
) -> None:
    leadership.begin(1, until=10, assignment=Keys("ab"))  # type: ignore[arg-type]
    leadership.hold("a")
    leadership.move(Keys("b"))  # type: ignore[arg-type]
    assert leadership.has("a")
    assert leadership.has("b")
    await asyncio.sleep(10)
    assert not leadership.has("a")
    leadership.release("a")
    leadership.step_down()
    leadership.begin(2, until=20, assignment=Keys("b"))  # type: ignore[arg-type]
    assert not leadership.has("a")
    assert leadership.has("b")


async def test_drained_waits_for_lost_keys_and_logs_them(
    leadership: Leadership, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(key: str, seconds: float) -> None:
        leadership.hold(key)  # two loops work on the key
        leadership.hold(key)
        await asyncio.sleep(seconds)
        leadership.release(key)
        leadership.release(key)

    works = [asyncio.create_task(work(key, seconds)) for key, seconds in (("a", 7), ("b", 100))]
    await asyncio.sleep(0)
    await leadership.drained(Keys("a").has)
    assert asyncio.get_running_loop().time() == 7
    assert "keys for another member are still worked on keys=a count=1" in caplog.text
    await leadership.drained(Keys("a").has)
    assert asyncio.get_running_loop().time() == 7
    await asyncio.wait(works)


async def test_only_a_process_with_sharding_shares_keys(leadership: Leadership) -> None:
    assert shares_keys() is False
    current_leadership.set(leadership)
    assert shares_keys() is False
    leadership.expected = OnlyKeys("a")
    assert shares_keys() is True


async def test_a_standby_expects_every_key(leadership: Leadership) -> None:
    assert leadership.expects("a")


async def test_a_member_expects_the_keys_of_its_next_term(leadership: Leadership) -> None:
    leadership.expected = OnlyKeys("a")
    assert leadership.expects("a")
    assert not leadership.expects("b")


async def test_a_key_that_is_not_assigned_is_not_expected_during_a_term(
    leadership: Leadership,
) -> None:
    leadership.expected = OnlyKeys("a")
    leadership.begin(1, until=10, assignment=OnlyKeys("a"))
    with leadership.moving(lambda _: None):
        leadership.move(OnlyKeys(""))
        assert not leadership.expects("a")


async def test_a_key_in_work_is_expected_until_it_is_released(leadership: Leadership) -> None:
    leadership.expected = OnlyKeys("a")
    leadership.begin(1, until=10, assignment=OnlyKeys("a"))
    with leadership.moving(lambda _: None):
        leadership.hold("a")
        leadership.move(OnlyKeys("b"))
        assert leadership.expects("a")
        leadership.release("a")
        assert not leadership.expects("a")


async def test_the_keys_of_the_last_term_are_expected_until_a_loop_follows_the_next_one(
    leadership: Leadership,
) -> None:
    leadership.expected = OnlyKeys("ab")
    leadership.begin(1, until=10, assignment=OnlyKeys("a"))
    assert leadership.expects("a")
    assert leadership.expects("b")
    with leadership.moving(lambda _: None):
        assert leadership.expects("a")
        assert not leadership.expects("b")


async def test_a_member_expects_the_keys_of_its_last_term_after_the_term(
    leadership: Leadership,
) -> None:
    leadership.expected = OnlyKeys("a")
    leadership.begin(1, until=10, assignment=OnlyKeys("b"))
    with leadership.moving(lambda _: None):
        leadership.lose()
    assert leadership.expects("b")
    assert not leadership.expects("a")


async def test_leader_election_assigns_no_expected_keys(leadership: Leadership) -> None:
    leadership.begin(1, until=10)
    assert leadership.expected is None


async def test_a_listener_that_leaves_does_not_end_the_others(leadership: Leadership) -> None:
    assignments: list[Assignment] = []
    first = OnlyKeys("a")
    with leadership.moving(assignments.append):
        with leadership.moving(lambda _: None):
            pass
        leadership.begin(1, until=10, assignment=first)
    assert assignments == [NONE, first]


async def test_a_key_of_two_loops_is_held_until_both_release_it(leadership: Leadership) -> None:
    leadership.begin(1, until=10)
    leadership.move(NONE)
    leadership.hold("a")
    leadership.hold("a")
    leadership.release("a")
    assert leadership.has("a")
    leadership.release("a")
    assert not leadership.has("a")
