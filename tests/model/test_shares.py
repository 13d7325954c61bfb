"""The rules of the shares hold in every state, and each of them is needed.

`pytest -s tests/model` prints how many states each scope has. The larger ones are marked `long`.
"""

from typing import NamedTuple

import pytest

from tests.model.checker import Found, Search
from tests.model.shares import RULES, Faults, Scope, Shares

QUIET = Scope(lossy=False, gives=False)  # no request is lost, and no share is given up


def search(scope: Scope) -> Found:
    found = Search(Shares(scope)).run()
    print(f"\n{scope}\n{found}")
    return found


def with_faults(**faults: int) -> Scope:
    return QUIET._replace(faults=Faults(**faults))


SMALL = {
    "requests are lost and shares given up, a watch lags by one message": Scope(unread=1),
    "a watch lags by two messages": QUIET,
    "a session's process crashes": with_faults(crashes=1),
    "the record is deleted": with_faults(deleted=1),
    "a heartbeat is deleted": with_faults(heartbeats=1),
}
LARGE = {
    "requests are lost and shares given up": Scope(),
    "the bucket is recreated": with_faults(buckets=1),
    "the record is put back": with_faults(put_back=1),
    "a crash, and a late heartbeat of the session that is over": with_faults(crashes=1, late=1),
    "a crash, and the record is deleted": with_faults(crashes=1, deleted=1),
    "a crash, and the record is put back": with_faults(crashes=1, put_back=1),
    "the record is deleted and one is put back": with_faults(deleted=1, put_back=1),
    "a crash, requests are lost, shares given up": Scope(faults=Faults(crashes=1)),
    "the record is deleted, requests are lost, shares given up": Scope(faults=Faults(deleted=1)),
    "three members": QUIET._replace(members=3),
    "three members and a crash": with_faults(crashes=1)._replace(members=3),
    "three members, and the record is deleted": with_faults(deleted=1)._replace(members=3),
    "two shares": QUIET._replace(shares=2, unread=1),
    "two shares that are given up": Scope(shares=2, unread=1, lossy=False),
    "three members and two shares": QUIET._replace(members=3, shares=2, unread=1),
}


@pytest.mark.parametrize(
    "scope",
    [
        *[pytest.param(scope, id=name) for name, scope in SMALL.items()],
        *[pytest.param(scope, id=name, marks=pytest.mark.long) for name, scope in LARGE.items()],
    ],
)
@pytest.mark.timeout(3600)
def test_never_two_sessions_work_on_a_share_and_there_is_always_a_way_back(scope: Scope) -> None:
    found = search(scope)

    assert found.verdict == "completed"
    assert found.ticks <= 2 * scope.wait


class Needed(NamedTuple):
    """A scope in which a rule is needed, and how long the shortest run without it is."""

    scope: Scope
    steps: int


def quick(scope: Scope) -> Scope:
    """Return the scope with fewer ticks; the run without the rule is as good, and found sooner."""
    return scope._replace(wait=3, limit=2)


NEEDED = {
    "returned": Needed(with_faults(deleted=1)._replace(unread=4), 14),
    "sent": Needed(QUIET, 13),
    "over": Needed(QUIET, 14),
    "one watch": Needed(with_faults(deleted=1), 19),
    "cas": Needed(Scope(lossy=False), 11),
    "raise": Needed(quick(with_faults(put_back=1)), 16),
    "older": Needed(quick(with_faults(put_back=1)), 26),
    "equal": Needed(quick(with_faults(put_back=1)), 16),
    "drain": Needed(Scope(lossy=False), 6),
    "doubt": Needed(Scope(lossy=False), 7),
    "again": Needed(Scope(unread=1), 2),
    "mark": Needed(QUIET, 10),
    "mark back": Needed(QUIET, 11),
    "end cas": Needed(QUIET, 13),
    "deletion": Needed(quick(with_faults(heartbeats=1)), 18),
    "calm": Needed(quick(with_faults(crashes=1, put_back=1)), 13),
    "shown": Needed(quick(with_faults(crashes=1, put_back=1)), 14),
    "calm again": Needed(quick(with_faults(deleted=1)._replace(members=3)), 10),
    "keep": Needed(quick(with_faults(crashes=1, put_back=1)), 31),
}


@pytest.mark.parametrize(
    "rule", [pytest.param(r, marks=[pytest.mark.long] * (r == "keep")) for r in RULES]
)
def test_each_rule_is_needed(rule: str) -> None:
    scope, steps = NEEDED[rule]
    found = search(scope._replace(without=rule))

    assert found.verdict == ("dead end" if rule == "again" else "two at once")
    assert len(found.trace) == steps


@pytest.mark.long
def test_a_record_put_back_that_a_running_process_has_not_seen_is_not_promised() -> None:
    found = search(with_faults(put_back=1)._replace(ahead=True, unread=4))

    assert found.verdict == "two at once"
    assert len(found.trace) == 28
