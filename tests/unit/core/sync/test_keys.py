"""The reason of a sync: the strongest of the reasons that are due."""

import asyncio

import pytest

from natsctl.core.sync.keys import Operation, Reasons


def test_a_sync_without_a_reason_is_a_retry() -> None:
    assert Reasons().take("a") is Operation.RETRY


@pytest.mark.parametrize(
    ("added", "reason"),
    [
        ((Operation.PUT,), Operation.PUT),
        ((Operation.PUT, Operation.DELETE), Operation.DELETE),
        ((Operation.DELETE, Operation.PUT), Operation.PUT),
        ((Operation.PUT, Operation.RESYNC), Operation.PUT),
        ((Operation.RESYNC, Operation.SECONDARY), Operation.SECONDARY),
        ((Operation.MANUAL, Operation.PUT), Operation.MANUAL),
        ((Operation.RESYNC, Operation.MANUAL, Operation.DELETE), Operation.MANUAL),
    ],
)
async def test_the_strongest_reason_wins_then_the_newest(
    added: tuple[Operation, ...], reason: Operation
) -> None:
    reasons = Reasons()
    for operation in added:
        reasons.add("a", operation)
    assert reasons.take("b") is Operation.RETRY
    assert reasons.take("a") is reason
    assert reasons.take("a") is Operation.RETRY


async def test_a_delayed_reason_counts_from_its_time_on() -> None:
    reasons = Reasons()
    reasons.add("a", Operation.MANUAL, after=10)
    reasons.add("a", Operation.RESYNC, after=20)
    reasons.add("a", Operation.SECONDARY)
    assert reasons.take("a") is Operation.SECONDARY
    await asyncio.sleep(9)
    assert reasons.take("a") is Operation.RETRY
    await asyncio.sleep(1)
    assert reasons.take("a") is Operation.MANUAL
    assert reasons.take("a") is Operation.RETRY


async def test_the_earlier_of_two_delayed_reasons_wins() -> None:
    reasons = Reasons()
    reasons.add("a", Operation.MANUAL, after=20)
    reasons.add("a", Operation.RESYNC, after=10)
    await asyncio.sleep(10)
    assert reasons.take("a") is Operation.RESYNC
