"""A process leads in terms: work begins with each, and has ended after it."""

import asyncio
from collections.abc import Hashable

import pytest

from natsctl.core.coordination.assignment import NONE, Assignment
from natsctl.core.coordination.term import Leadership, current_leadership, leading, led
from natsctl.errors import NotLeadingError


@pytest.fixture
async def leadership() -> Leadership:
    return Leadership("apps", asyncio.get_running_loop().time)


class Work:
    """Notes when it begins and ends."""

    def __init__(self, pause_s: float = 100.0) -> None:
        self.told: list[str] = []
        self.over = asyncio.Event()
        self._pause_s = pause_s

    async def run(self) -> None:
        self.told.append("begins")
        try:
            await asyncio.sleep(self._pause_s)
            self.told.append("is done")
        finally:
            self.told.append("ends")

    async def ended(self) -> None:
        await self.over.wait()


async def test_a_term_ends_by_itself_when_its_time_is_over(leadership: Leadership) -> None:
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


async def test_a_term_whose_time_is_over_never_comes_to_life_again(leadership: Leadership) -> None:
    leadership.begin(1, until=10)
    await asyncio.sleep(10)
    with pytest.raises(NotLeadingError, match="apps"):
        leadership.extend(until=20)
    assert not leadership.leads


async def test_what_is_lost_is_over_at_once_what_is_left_goes_on_for_its_time(
    leadership: Leadership,
) -> None:
    leadership.begin(1, until=10)
    leadership.step_down()
    assert (leadership.leads, leadership.epoch) == (True, None)
    leadership.begin(2, until=10)
    leadership.lose()
    assert (leadership.leads, leadership.epoch) == (False, None)


async def test_work_begins_with_each_term_and_is_cancelled_at_its_end(
    leadership: Leadership,
) -> None:
    work = Work()
    task = asyncio.create_task(leadership.lead(work.run, work.ended))
    await asyncio.sleep(1)
    assert (leadership.sought.is_set(), work.told) == (True, [])
    for epoch in (1, 2):
        leadership.begin(epoch, until=1e9)
        await asyncio.sleep(1)
        assert work.told == ["begins"]
        leadership.step_down()
        await leadership.quiet()
        assert work.told == ["begins", "ends"]
        work.told.clear()
    work.over.set()
    await task


async def test_work_that_is_under_way_at_the_end_is_waited_for(leadership: Leadership) -> None:
    work = Work()
    task = asyncio.create_task(leadership.lead(work.run, work.ended))
    leadership.begin(1, until=1e9)
    await asyncio.sleep(1)
    work.over.set()
    await task
    assert work.told == ["begins", "is done", "ends"]


async def test_an_error_of_the_work_comes_out(leadership: Leadership) -> None:
    async def fail() -> None:
        raise ValueError("bad")

    leadership.begin(1, until=1e9)
    with pytest.raises(ValueError, match="bad"):
        await leadership.lead(fail, Work().ended)


async def test_who_is_cancelled_leaves_no_work_behind(leadership: Leadership) -> None:
    work = Work()
    task = asyncio.create_task(leadership.lead(work.run, work.ended))
    leadership.begin(1, until=1e9)
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait((task,))
    assert work.told == ["begins", "ends"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_where_nobody_is_elected_everybody_leads(leadership: Leadership) -> None:
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


class Some:
    def __init__(self, keys: str) -> None:
        self.keys = keys

    def has(self, key: Hashable) -> bool:
        return str(key) in self.keys


async def test_whoever_asks_is_told_which_keys_are_its_own_now_and_whenever_that_changes(
    leadership: Leadership,
) -> None:
    told: list[Assignment] = []
    first, second = Some("ab"), Some("b")
    with leadership.moving(told.append):
        leadership.begin(1, until=1e9, assignment=first)  # type: ignore[arg-type]
        leadership.move(second)  # type: ignore[arg-type]
        leadership.lose()
    leadership.begin(2, until=1e9)
    assert told == [NONE, first, second, NONE]


async def test_a_key_is_this_process_s_own_while_it_is_worked_on_and_no_longer_than_the_term(
    leadership: Leadership,
) -> None:
    leadership.begin(1, until=10, assignment=Some("ab"))  # type: ignore[arg-type]
    with leadership.working_on("a"):
        leadership.move(Some("b"))  # type: ignore[arg-type]
        assert leadership.has("a")
        assert leadership.has("b")
        await asyncio.sleep(10)
        assert not leadership.has("a")
    leadership.step_down()
    leadership.begin(2, until=20, assignment=Some("b"))  # type: ignore[arg-type]
    assert not leadership.has("a")
    assert leadership.has("b")


async def test_what_goes_is_waited_for_and_told_of_until_nobody_is_at_it(
    leadership: Leadership, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(key: str, seconds: float) -> None:
        with leadership.working_on(key), leadership.working_on(key):  # by two loops
            await asyncio.sleep(seconds)

    works = [asyncio.create_task(work(key, seconds)) for key, seconds in (("a", 7), ("b", 100))]
    await asyncio.sleep(0)
    await leadership.drained(Some("a").has)
    assert asyncio.get_running_loop().time() == 7
    assert "keys for another member are still worked on keys=a count=1" in caplog.text
    await leadership.drained(Some("a").has)
    assert asyncio.get_running_loop().time() == 7
    await asyncio.wait(works)
