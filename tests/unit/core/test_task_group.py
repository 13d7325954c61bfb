"""Tasks that end together raise a single failure as itself."""

import pytest

from natsctl.core.task_group import together


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
