"""A session: when it's over, and what extends it."""

import msgspec
import pytest

from natsctl.core.coordination.lease import (
    STEP_DOWN,
    VOID,
    Lease,
    SessionHeartbeat,
    Workload,
    heartbeat_key,
    name_taken,
    record_in,
)
from natsctl.errors import UsageError

TTL_S = 10.0


def beat(lease: Lease, now: float) -> bytes:
    """Return the next renewal as it is stored."""
    heartbeat = SessionHeartbeat(lease.session, lease.ttl_s, 1)
    return msgspec.json.encode(lease.renew(now, heartbeat))


def test_a_renewal_counts_when_it_came_back_and_from_when_it_was_sent() -> None:
    lease = Lease("apps", "host:1", TTL_S)
    first = beat(lease, 100.0)
    assert lease.void_at < 100.0
    lease.came_back(first, 7)
    assert lease.void_at == 100.0 + VOID * TTL_S
    second, third = beat(lease, 101.5), beat(lease, 103.0)
    lease.came_back(third, 9)
    lease.came_back(second, 8)
    assert (lease.void_at, lease.revision) == (103.0 + VOID * TTL_S, 9)


def test_a_session_that_lapsed_is_over_for_good() -> None:
    lease = Lease("apps", "host:1", TTL_S)
    lease.came_back(beat(lease, 100.0), 7)
    late = beat(lease, 104.0)
    assert not lease.lapse(100.0 + STEP_DOWN * TTL_S - 0.001)
    assert lease.lapse(100.0 + STEP_DOWN * TTL_S)
    lease.came_back(late, 8)
    assert lease.lapse(104.1)
    assert not lease.refused


def test_an_end_mark_ends_the_session_at_once() -> None:
    lease = Lease("apps", "host:1", TTL_S)
    lease.came_back(beat(lease, 100.0), 7)
    mark = SessionHeartbeat(lease.session, TTL_S, 1, over=True)
    lease.came_back(msgspec.json.encode(mark), 8)
    assert lease.lapse(100.1)
    assert lease.refused


@pytest.mark.parametrize(("value", "revision"), [(None, 0), (b"?", 8), (b"{}", 8)])
def test_a_heartbeat_that_was_deleted_or_overwritten_is_written_again_at_once(
    value: bytes | None, revision: int
) -> None:
    lease = Lease("apps", "host:1", TTL_S)
    lease.came_back(beat(lease, 100.0), 7)
    lease.came_back(value, 8)
    assert lease.renew_at < 100.0
    assert lease.revision == revision
    assert not lease.lapse(100.1)


def test_two_sessions_of_a_process_have_different_names_and_keys() -> None:
    one, two = (Lease("apps", "host.example:1", TTL_S) for _ in range(2))
    assert one.key != two.key
    assert one.key == heartbeat_key("apps", one.session)
    assert one.key.count(".") == 2


@pytest.mark.parametrize(
    ("text", "masks"),
    [
        ('{"epoch": 1, "shares": 256, "members": {"a": "f0", "b": "f"}}', {"a": 0xF0, "b": 0xF}),
        ('{"epoch": 1, "shares": 1, "members": {}}', {}),
        ('{"epoch": 1, "shares": 256, "members": {"a": "f0", "b": "10"}}', None),
        ('{"epoch": 1, "shares": 1, "members": {"a": "2"}}', None),
        ('{"epoch": 1, "shares": 256, "members": {"a": "-1"}}', None),
        ('{"epoch": 1, "shares": 256, "members": {"a": "0x1"}}', None),
        ('{"epoch": 0, "shares": 256, "members": {}}', None),
        ('{"epoch": 1, "shares": 64, "members": {}}', None),
        ('{"holder": "a", "ttlS": 15}', None),
        ("", None),
        ("\xff", None),
    ],
)
def test_a_record_that_gives_a_share_to_two_or_is_not_one_is_garbled(
    text: str, masks: dict[str, int] | None
) -> None:
    record, found = record_in(text.encode())
    assert (record is None) is (masks is None)
    assert found == (masks or {})


@pytest.mark.parametrize("ttl_s", [0.0, 0.9, 3601.0, float("nan")])
def test_a_time_to_live_that_cannot_be_renewed_is_refused(ttl_s: float) -> None:
    with pytest.raises(UsageError, match="lease"):
        Lease("apps", "host:1", ttl_s)


def test_workloads_differ_if_a_field_that_both_know_differs() -> None:
    ours = Workload("App.apps", "one", "prod")
    assert ours.same(Workload())
    assert ours.same(Workload("App.apps", "", "prod"))
    assert not ours.same(Workload("Site.sites"))
    elsewhere = Workload("App.apps", "one", "test")
    assert not ours.same(elsewhere)
    assert ours.only_elsewhere(elsewhere)
    assert "another Kubernetes cluster" in name_taken("apps", "h:1", elsewhere, ours)
    assert "another controller" in name_taken("apps", "h:1", Workload("Site.sites"), ours)
