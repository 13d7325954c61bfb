"""Tasks that end together raise a single failure as itself."""

import asyncio

import pytest

from natsctl.core.task_group import for_each, together


async def fail(error: Exception, cause: Exception | None = None) -> None:
    raise error from cause


async def fail_together(*errors: Exception) -> None:
    async with together() as group:
        for error in errors:
            group.create_task(fail(error, KeyError("the cause")))


async def test_a_single_failure_is_raised_as_itself_with_its_cause() -> None:
    with pytest.raises(ValueError, match="mine") as raised:
        await fail_together(ValueError("mine"))
    assert isinstance(raised.value.__cause__, KeyError)


async def test_several_failures_are_raised_as_a_group() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await fail_together(ValueError("mine"), OSError("yours"))
    assert sorted(map(str, raised.value.exceptions)) == ["mine", "yours"]


async def test_each_item_is_worked_on_once_by_a_few_workers() -> None:
    done: list[int] = []
    running, running_max = 0, 0

    async def work(item: int) -> None:
        nonlocal running, running_max
        running += 1
        running_max = max(running_max, running)
        await asyncio.sleep(0)
        running -= 1
        done.append(item)

    await for_each(range(5), work, workers=2)
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert running_max == 2


async def test_the_failure_for_one_item_is_raised() -> None:
    with pytest.raises(ValueError, match="mine"):
        await for_each([ValueError("mine")], fail, workers=2)
