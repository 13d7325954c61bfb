"""A failed creation is retried after its wait, and not before."""

import asyncio

import pytest

from natsctl.errors import RetryAfter
from natsctl.managed.creation.backoff import CreationBackoff
from natsctl.managed.names import AnnotationNames
from natsctl.managed.objects import Managed
from natsctl.managed.situation import Action
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
    with pytest.raises(RetryAfter, match="full"), backoff.attempt(Action.CREATE, managed):
        raise RetryAfter(WAIT_S, "full")


async def test_a_creation_is_refused_during_its_wait(
    backoff: CreationBackoff, managed: Managed[Disk]
) -> None:
    await fail(backoff, managed)
    await asyncio.sleep(WAIT_S - 1.0)
    with (
        pytest.raises(RetryAfter, match="retried later"),
        backoff.attempt(Action.CREATE, managed),
    ):
        pytest.fail("the creation was tried")


async def test_a_creation_is_tried_if_its_timer_fires_half_a_millisecond_early(
    backoff: CreationBackoff, managed: Managed[Disk]
) -> None:
    await fail(backoff, managed)
    await asyncio.sleep(WAIT_S - 0.0005)
    tries = 0
    with backoff.attempt(Action.CREATE, managed):
        tries += 1
    assert tries == 1
