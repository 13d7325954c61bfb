"""A lease without a trace is free if no process has run the controller, or none can hold it."""

import math

import msgspec
import pytest

from natsctl.core.coordination.own_record import TAKE_OVER
from natsctl.core.coordination.vacancy import FIRST_RUNS, FirstRun, Vacancy
from natsctl.errors import PermissionDeniedError, StoreError
from natsctl.testing import MemoryStore, MemoryStores

TTL_S = 10.0


class Leases:
    """A bucket of leases that was last written *quiet_s* seconds ago."""

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s

    async def quiet_s(self) -> float:
        return self._quiet_s


@pytest.fixture
def stores() -> MemoryStores:
    return MemoryStores()


@pytest.fixture
def records(stores: MemoryStores) -> MemoryStore:
    return stores.store(FIRST_RUNS)


def vacancy(stores: MemoryStores, quiet_s: float = 0.0) -> Vacancy:
    return Vacancy(stores, Leases(quiet_s), ttl_s=TTL_S)


async def test_the_first_run_of_a_controller_is_vacant(stores: MemoryStores) -> None:
    assert await vacancy(stores).is_vacant("apps")


async def test_the_first_run_is_recorded_with_its_time(
    stores: MemoryStores, records: MemoryStore
) -> None:
    await vacancy(stores).is_vacant("apps")
    stored = await records.get("lease.apps")
    assert "T" in msgspec.json.decode(stored.value, type=FirstRun).at


async def test_a_later_run_is_not_vacant_while_leases_are_written(stores: MemoryStores) -> None:
    await vacancy(stores).is_vacant("apps")
    assert not await vacancy(stores, TAKE_OVER * TTL_S).is_vacant("apps")


async def test_a_later_run_is_vacant_after_no_lease_was_written_for_long(
    stores: MemoryStores,
) -> None:
    await vacancy(stores).is_vacant("apps")
    assert await vacancy(stores, math.nextafter(TAKE_OVER * TTL_S, 100)).is_vacant("apps")


async def test_each_controller_has_its_own_first_run(stores: MemoryStores) -> None:
    await vacancy(stores).is_vacant("apps")
    assert await vacancy(stores).is_vacant("sites")


async def test_a_process_that_may_not_record_its_run_waits_until_no_lease_is_written(
    stores: MemoryStores, records: MemoryStore
) -> None:
    records.fail(PermissionDeniedError("not you"))
    assert not await vacancy(stores).is_vacant("apps")
    assert await vacancy(stores, TTL_S).is_vacant("apps")


async def test_a_bucket_that_cannot_be_written_is_an_error(
    stores: MemoryStores, records: MemoryStore
) -> None:
    records.fail(StoreError("no answer"))
    with pytest.raises(StoreError, match="no answer"):
        await vacancy(stores, 100 * TTL_S).is_vacant("apps")
