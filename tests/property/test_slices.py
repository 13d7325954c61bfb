"""Long tables are worked on in slices: no key is missed, and no turn is long."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsctl import split_dict
from natsctl.slices import ITEMS_MAX, SORTED_MAX, TURN_S, Slices, in_order, in_slices, retain
from natsctl.split_dict import CurrentKeys, SplitDict

# ---- property tests of a split dict: it is a dict, and an iteration misses no key that stays

KEYS = st.integers(0, 8).map(lambda number: f"key.{number}")  # few, so that steps meet a key again


@pytest.fixture(scope="module", autouse=True)
def dicts_are_split_early() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(split_dict, "WHOLE_MAX", 4)
        yield


def dict_of(keys: set[str]) -> SplitDict[None]:
    table = SplitDict[None]()
    for key in keys:
        table[key] = None
    return table


@given(st.lists(st.tuples(KEYS, st.none() | st.integers())))
def test_a_split_dict_behaves_like_a_dict(steps: list[tuple[str, int | None]]) -> None:
    table, expected = SplitDict[int](), dict[str, int]()
    for key, value in steps:
        if value is None:
            assert table.pop(key) == expected.pop(key, None)
        else:
            table[key] = expected[key] = value
        assert table.get(key) == expected.get(key)
        assert (key in table) == (key in expected)
    assert len(table) == len(expected)
    assert bool(table) == bool(expected)
    assert dict(table) == expected


@given(st.data())
def test_keys_that_stay_are_iterated_once(data: st.DataObject) -> None:
    """Between two keys, keys are added, removed, or the whole dict is replaced."""
    staying = data.draw(st.sets(KEYS))
    tables = [dict_of(staying | data.draw(st.sets(KEYS)))]
    start = data.draw(st.floats(0, 1))
    iterated: list[str] = []
    for key in CurrentKeys(lambda: tables[-1]).iterate(start):
        iterated.append(key)
        match data.draw(st.sampled_from(["nothing", "add", "remove", "replace"])):
            case "add":
                tables[-1][data.draw(KEYS)] = None
            case "remove":
                removed = data.draw(KEYS)
                if removed not in staying:
                    tables[-1].pop(removed)
            case "replace":
                tables.append(dict_of(staying | data.draw(st.sets(KEYS))))
            case _:
                pass
    assert len(iterated) == len(set(iterated))
    assert staying <= set(iterated)


@given(st.sets(KEYS), st.sets(KEYS))
def test_a_dict_that_changes_yields_each_key_once_that_stays(
    staying: set[str], leaving: set[str]
) -> None:
    table, iterated = dict_of(staying), list[str]()
    for key in table:
        iterated.append(key)
        for leaving_key in leaving - staying:
            if table.pop(leaving_key) is None:
                table[leaving_key] = None
    assert len(iterated) == len(set(iterated))
    assert staying <= set(iterated)


# ---- sliced work lets other tasks run often, however many tasks are at work

ITEM_S = TURN_S / 20


class CountedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock moves only when a task works."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def work(self, _item: int) -> None:
        self.now += ITEM_S


def run(main: Callable[[CountedLoop], Coroutine[None, None, None]]) -> None:
    loop = CountedLoop()
    try:
        loop.run_until_complete(main(loop))
    finally:
        loop.close()


async def longest_stall(loop: CountedLoop, *tasks: Coroutine[None, None, None]) -> float:
    """Run the tasks, and return the longest time between two turns of the loop after the first."""
    working = asyncio.gather(*tasks)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    longest, before = 0.0, loop.now
    while not working.done():
        await asyncio.sleep(0)
        longest, before = max(longest, loop.now - before), loop.now
    await working
    return longest


@pytest.mark.parametrize("tasks", [1, 4, 20])
def test_all_sliced_tasks_share_one_turn(tasks: int) -> None:
    async def main(loop: CountedLoop) -> None:
        works = [in_slices(range(400), loop.work) for _ in range(tasks)]
        assert await longest_stall(loop, *works) <= TURN_S + tasks * ITEM_S

    run(main)


def test_a_slice_that_is_over_ends_after_a_whole_stride() -> None:
    async def main(loop: CountedLoop) -> None:
        slices = Slices(stride=10)
        loop.now += TURN_S
        assert [slices.is_over() for _ in range(10)] == [False] * 9 + [True]

    run(main)


def test_a_stride_does_not_lengthen_a_slice_in_which_no_time_passes() -> None:
    async def main(_loop: CountedLoop) -> None:
        slices, items = Slices(stride=8), 1
        while not slices.is_over():
            items += 1
        assert items == ITEMS_MAX

    run(main)


def test_each_task_gets_an_equal_part_of_a_turn() -> None:
    async def main(loop: CountedLoop) -> None:
        counts = {"busy": 0, "other": 0}

        async def work(name: str) -> None:
            slices = Slices()
            for item in range(400):
                loop.work(item)
                counts[name] += 1
                if slices.is_over():
                    await slices.pause()

        def interrupt() -> None:
            """Take the time of a turn, as another callback of the loop or another process may."""
            loop.now += TURN_S
            if working:
                loop.call_soon(interrupt)

        working = [asyncio.create_task(work(name)) for name in counts]
        interrupt()
        await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
        assert min(counts.values()) > 200
        working.clear()

    run(main)


def test_a_slice_ends_also_if_no_time_passes() -> None:
    async def main(_loop: CountedLoop) -> None:
        done: list[int] = []
        working = asyncio.create_task(in_slices(range(3 * ITEMS_MAX), done.append))
        await asyncio.sleep(0)
        assert len(done) == ITEMS_MAX
        await working
        assert len(done) == 3 * ITEMS_MAX

    run(main)


def test_a_task_that_waited_begins_a_new_slice() -> None:
    async def main(loop: CountedLoop) -> None:
        slices = Slices()
        loop.work(0)
        working = asyncio.create_task(in_slices(range(100), loop.work))
        await working
        assert not slices.is_over()

    run(main)


def test_a_slice_does_one_item_at_least() -> None:
    async def main(loop: CountedLoop) -> None:
        done: list[int] = []

        def work(item: int) -> None:
            loop.now += 10 * TURN_S
            done.append(item)

        working = asyncio.create_task(in_slices(range(3), work))
        for count in (1, 2, 3):
            await asyncio.sleep(0)
            assert len(done) == count
        await working

    run(main)


def test_a_task_that_waited_ends_its_next_slice() -> None:
    async def main(loop: CountedLoop) -> None:
        slices = Slices()
        await in_slices(range(100), loop.work)
        assert not slices.is_over()
        loop.now += TURN_S
        assert slices.is_over()

    run(main)


def test_a_task_gets_a_whole_turn_some_turns_after_the_others_have_ended() -> None:
    async def main(loop: CountedLoop) -> None:
        await asyncio.gather(*(in_slices(range(40), loop.work) for _ in range(20)))
        working = asyncio.create_task(in_slices(range(4_000), loop.work))
        for _ in range(100):
            await asyncio.sleep(0)
        began = loop.now
        await asyncio.sleep(0)
        assert loop.now - began == pytest.approx(TURN_S, abs=1.5 * ITEM_S)
        await working

    run(main)


def test_retain_drops_the_keys_that_are_not_wanted() -> None:
    async def main(_loop: CountedLoop) -> None:
        stored = dict.fromkeys("abcd")
        await retain(stored, lambda key: key in "bd", stored.pop)
        assert list(stored) == ["b", "d"]

    run(main)


@pytest.mark.parametrize("count", [0, 1, SORTED_MAX, SORTED_MAX + 1, 3 * SORTED_MAX])
async def test_items_in_order_are_those_of_sorted(count: int) -> None:
    items = [f"key-{number * 7919 % 10_007}" for number in range(count)]
    assert await in_order(items) == sorted(items)


async def test_equal_ranks_keep_their_order() -> None:
    items = list(range(3 * SORTED_MAX))
    assert await in_order(items, by=lambda item: item % 2) == sorted(items, key=lambda i: i % 2)


async def test_other_tasks_run_while_many_items_are_put_in_order() -> None:
    ordering, turns = asyncio.create_task(in_order(range(4 * SORTED_MAX, 0, -1))), 0
    while not ordering.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 4 * SORTED_MAX / ITEMS_MAX
