"""The deadlines of a record that only this process writes."""

import asyncio
import math

import pytest

from natsctl import kv
from natsctl.core.coordination.lease import Claim, Lease
from natsctl.core.coordination.own_record import (
    RENEW,
    STEP_DOWN,
    TAKE_OVER,
    TTL_MAX_S,
    TTL_MIN_S,
    VOID,
    Workload,
    possible_ttl,
)
from natsctl.core.coordination.participant import name_taken
from natsctl.errors import ConflictError
from natsctl.testing import MemoryStore

TTL_S = 10.0


def new_lease(store: MemoryStore) -> Lease:
    clock = asyncio.get_running_loop().time
    return Lease(store, "x", holder="one", ttl_s=TTL_S, clock=clock)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(kv(Claim, bucket="leases", history=1))


@pytest.mark.parametrize(
    ("ttl_s", "possible"),
    [
        (TTL_MIN_S, True),
        (TTL_MAX_S, True),
        (TTL_MIN_S - 0.1, False),
        (TTL_MAX_S + 0.1, False),
        (math.nan, False),
    ],
)
def test_a_time_to_live_has_a_least_and_a_greatest_value(ttl_s: float, *, possible: bool) -> None:
    assert possible_ttl(ttl_s) is possible


def test_a_process_ends_its_work_before_others_begin_it() -> None:
    assert 0 < RENEW < STEP_DOWN < VOID < TAKE_OVER < 1


async def test_deadlines_count_from_the_last_acknowledged_write(store: MemoryStore) -> None:
    lease = new_lease(store)
    await asyncio.sleep(100)
    await lease.acquire()
    deadlines = (lease.renew_at, lease.step_down_at, lease.void_at)
    assert deadlines == pytest.approx([100 + share * TTL_S for share in (RENEW, STEP_DOWN, VOID)])


async def test_a_record_that_another_process_changed_is_no_record_of_this_process(
    store: MemoryStore,
) -> None:
    lease = new_lease(store)
    held = await lease.acquire()
    assert held is not None
    await asyncio.sleep(TTL_S)
    await store.delete("x")
    with pytest.raises(ConflictError):
        await lease.renew(held)
    assert lease.last is None


@pytest.mark.parametrize("theirs", [Workload("App.apps"), Workload("App.apps", "here")])
def test_an_unknown_workload_may_be_any(theirs: Workload) -> None:
    assert Workload().same(theirs)


def test_the_same_controller_in_two_clusters_is_not_the_same_workload() -> None:
    ours, theirs = (Workload("App.apps", "here", cluster) for cluster in ("one", "two"))
    assert not ours.same(theirs)
    assert ours.only_elsewhere(theirs)
    assert ours.same(Workload("App.apps", "here"))  # of an older version, or without a cluster
    assert not ours.only_elsewhere(Workload("Site.sites", "here", "two"))
    text = name_taken("apps", "host:1:aa", theirs, ours)
    assert "in another Kubernetes cluster: it works in the cluster two, this one in one" in text


@pytest.mark.parametrize(
    ("workload", "text"),
    [
        (Workload("App.apps", "here"), "App.apps of installation here"),
        (Workload("App.apps"), "App.apps"),
        (Workload("", "here"), "an unknown kind of installation here"),
    ],
)
def test_a_workload_names_its_known_parts(workload: Workload, text: str) -> None:
    assert str(workload) == text
