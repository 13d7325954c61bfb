"""A failed creation is retried after its wait, and not before."""

import asyncio

import pytest

from natsctl import AnnotationNames, Managed
from natsctl.errors import RetryAfter
from natsctl.managed.creation.backoff import BACKOFF_S, EARLY_S, CreationBackoff
from natsctl.managed.situation import ReconcileAction
from natsctl.model.store import Stored
from tests.support.controllers.disk_reconciler import DISKS, Disk, clock

WAIT_S = 10.0


@pytest.fixture
def managed() -> Managed[Disk]:
    stored = Stored("a", 7, b'{"spec": {"size": 1}}')
    return Managed(DISKS, stored, names=AnnotationNames(), clock=clock)


@pytest.fixture
def backoff() -> CreationBackoff:
    return CreationBackoff(limit_s=60.0)


async def fail(backoff: CreationBackoff, managed: Managed[Disk]) -> None:
    with pytest.raises(RetryAfter, match="full"), backoff.attempt(ReconcileAction.CREATE, managed):
        raise RetryAfter(WAIT_S, "full")


async def test_a_creation_is_refused_during_its_wait(
    backoff: CreationBackoff, managed: Managed[Disk]
) -> None:
    await fail(backoff, managed)
    await asyncio.sleep(WAIT_S - 1.0)
    with (
        pytest.raises(RetryAfter, match="retried later"),
        backoff.attempt(ReconcileAction.CREATE, managed),
    ):
        pytest.fail("the creation was tried")


async def test_a_creation_is_tried_if_its_timer_fires_half_a_millisecond_early(
    backoff: CreationBackoff, managed: Managed[Disk]
) -> None:
    await fail(backoff, managed)
    await asyncio.sleep(WAIT_S - 0.0005)
    tries = 0
    with backoff.attempt(ReconcileAction.CREATE, managed):
        tries += 1
    assert tries == 1


async def test_a_failure_of_another_step_delays_no_creation(
    backoff: CreationBackoff, managed: Managed[Disk]
) -> None:
    with pytest.raises(OSError, match="away"), backoff.attempt(ReconcileAction.UPDATE, managed):
        raise OSError("away")
    with backoff.attempt(ReconcileAction.CREATE, managed):
        pass


async def test_another_step_does_not_wait_for_a_creation(
    backoff: CreationBackoff, managed: Managed[Disk]
) -> None:
    await fail(backoff, managed)
    with backoff.attempt(ReconcileAction.UPDATE, managed):
        pass


async def test_a_creation_is_tried_at_once_after_a_change_of_the_object(
    backoff: CreationBackoff, managed: Managed[Disk]
) -> None:
    await fail(backoff, managed)
    managed.reset(Stored("a", 8, b'{"spec": {"size": 2}}'))
    with backoff.attempt(ReconcileAction.CREATE, managed):
        pass


async def test_every_failure_of_a_creation_doubles_its_wait_up_to_the_limit(
    managed: Managed[Disk],
) -> None:
    backoff, waits = CreationBackoff(limit_s=4.0), list[float]()
    for _ in range(4):
        with pytest.raises(OSError, match="away"), backoff.attempt(ReconcileAction.CREATE, managed):
            raise OSError("away")
        known = backoff.wait_of("a")
        assert known is not None
        waits.append(known[1])
        await asyncio.sleep(known[1])
    shortest = [BACKOFF_S, 2 * BACKOFF_S, 4.0, 4.0]
    assert all(
        least - EARLY_S <= wait <= 1.1 * least + EARLY_S  # with up to a tenth of jitter
        for least, wait in zip(shortest, waits, strict=True)
    )


async def test_a_success_resets_the_backoff(
    backoff: CreationBackoff, managed: Managed[Disk]
) -> None:
    await fail(backoff, managed)
    await asyncio.sleep(WAIT_S)
    with backoff.attempt(ReconcileAction.CREATE, managed):
        pass
    assert backoff.wait_of("a") is None
    with pytest.raises(OSError, match="away"), backoff.attempt(ReconcileAction.CREATE, managed):
        raise OSError("away")
    known = backoff.wait_of("a")
    assert known is not None
    assert known[0] == 7
    assert BACKOFF_S - EARLY_S <= known[1] <= 1.1 * BACKOFF_S + EARLY_S


async def test_a_wait_can_be_replayed(backoff: CreationBackoff, managed: Managed[Disk]) -> None:
    await asyncio.sleep(100)
    backoff.wait("a", 7, WAIT_S)
    assert backoff.wait_of("a") == (7, WAIT_S)
    with pytest.raises(RetryAfter), backoff.attempt(ReconcileAction.CREATE, managed):
        pytest.fail("the creation was tried")
    await asyncio.sleep(2 * WAIT_S)
    assert backoff.wait_of("a") == (7, 0.0)
