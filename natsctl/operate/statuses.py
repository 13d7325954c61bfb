"""Combines what the daemons of one controller report to one row."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from natsctl.daemon.client import Daemons
from natsctl.daemon.messages import Activity, ControllerStatus
from natsctl.daemon.peers import Mode, conflict, counted
from natsctl.errors import NatsctlError
from natsctl.model.pause import Pause
from natsctl.model.reports import LANE_MAX, Lanes, PrimarySource
from natsctl.operate.absent import DOWN
from natsctl.operate.problems import Partial, Problem, missing, problem_of
from natsctl.telemetry.hiding import first_line

N = TypeVar("N", int, float)


class Daemon(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one daemon in a controller; a silent daemon has only its id and name."""

    id: str
    name: str
    answered: bool = False
    version: str = ""
    state: str = ""
    mode: str = ""
    trouble: str = ""
    failure: str = ""
    keys: int | None = None


class StatusRow(msgspec.Struct, frozen=True, kw_only=True):
    """One controller, as all its daemons together report it; None is for what none of them knows.

    Attributes:
        sources: where its primaries are.
        daemons: the daemons that run it, in the order of their names.
        mode: the mode of the daemon that works, the number of daemons that run alone, or of shards.
        conflict: why several daemons sync the same keys; empty if they do not.
        state: the state of the daemon that works; `down` if no daemon runs the controller.
        unhealthy: the number of keys that fail, are invalid, quarantined or overdue.
        paused_whole: the pause of the whole controller.
        queued: the number of keys that are ready.
        oldest_unanswered_s: seconds since the oldest change that waits for a successful sync, or
            since the oldest failure.
        lanes: the keys that are held or ready the longest, and those that are due next.
        activity: the syncs and failed syncs of the last 15 minutes.
        partial: which daemons did not answer; None if all did.
        error: why no daemon answered.
    """

    name: str
    sources: list[PrimarySource] = []
    daemons: list[Daemon] = []
    mode: str = ""
    conflict: str = ""
    state: str = ""
    primaries: int | None = None
    keys: int | None = None
    unhealthy: int | None = None
    failing: int | None = None
    invalid: int | None = None
    paused: int | None = None
    quarantined: int | None = None
    contested: int | None = None
    paused_whole: Pause | None = None
    queued: int | None = None
    held: int | None = None
    waiting: int | None = None
    oldest_unanswered_s: float | None = None
    lanes: Lanes | None = None
    activity: Activity | None = None
    garbage_held: str = ""
    problems: list[str] = []
    partial: Partial | None = None
    error: Problem | None = None


class ControllerStatuses(msgspec.Struct, frozen=True):
    """The row of one controller, the statuses of the daemons that cover its keys, and of all."""

    row: StatusRow
    working: list[ControllerStatus]
    statuses: list[ControllerStatus] = []


async def reports_of(daemons: Daemons, name: str) -> ControllerStatuses:
    """Return what the daemons of a controller report; an error becomes a part of the row."""
    expected = daemons.running(name)
    try:
        statuses = await daemons.status(name)
    except (NatsctlError, TimeoutError) as error:
        silent = [Daemon(id=id_, name=text) for id_, text in sorted(expected.items())]
        partial = missing(expected, set())
        row = StatusRow(name=name, daemons=silent, partial=partial, error=problem_of(error))
        return ControllerStatuses(row, [])
    return combined(name, statuses, expected)


def combined(
    name: str, statuses: Sequence[ControllerStatus], expected: Mapping[str, str] | None = None
) -> ControllerStatuses:
    """Return what these daemons report about a controller as one row.

    *expected* has the names of the daemons that run it, by id; by default those that answered.
    """
    answered_daemons = {
        status.daemon.id: _daemon(status) for status in statuses if status.daemon.id
    }
    expected = {} if expected is None else expected
    silent = [
        Daemon(id=id_, name=text) for id_, text in expected.items() if id_ not in answered_daemons
    ]
    ordered = sorted(
        [*answered_daemons.values(), *silent], key=lambda daemon: (daemon.name, daemon.id)
    )
    working = _covering(statuses)
    row = _row(name, statuses, working)
    partial = missing(expected, set(answered_daemons))
    return ControllerStatuses(
        msgspec.structs.replace(row, daemons=ordered, partial=partial), working, list(statuses)
    )


def _row(
    name: str, statuses: Sequence[ControllerStatus], working: Sequence[ControllerStatus]
) -> StatusRow:
    sources = dict.fromkeys(source for status in statuses for source in status.sources)
    queues = [status.queue for status in working if status.queue is not None]
    pauses = [status.paused_controller for status in working]
    known = [status for status in working if status.state != DOWN]
    texts = [text for status in statuses for text in (status.trouble, status.failure) if text]
    return StatusRow(
        name=name,
        sources=list(sources),
        mode=_mode(statuses, working),
        conflict=conflict(statuses),
        state=working[0].state if working else statuses[0].state,
        primaries=_max(status.primaries for status in working),
        keys=_sum(working, lambda status: status.keys),
        unhealthy=_sum(working, _unhealthy),
        failing=_sum(working, lambda status: status.failing_count),
        invalid=_sum(known, lambda status: status.invalid_count),
        paused=_sum(known, lambda status: status.paused_count),
        quarantined=_sum(working, lambda status: status.quarantined_count),
        contested=_sum(known, lambda status: status.contested_count),
        paused_whole=next((pause for pause in pauses if pause is not None), None),
        queued=sum(queue.depth for queue in queues) if queues else None,
        held=sum(queue.held for queue in queues) if queues else None,
        waiting=sum(queue.waiting for queue in queues) if queues else None,
        oldest_unanswered_s=_max(status.oldest_unanswered_s for status in working),
        lanes=_lanes([status.lanes for status in working if status.lanes is not None]),
        activity=_activity([status.activity for status in working if status.activity is not None]),
        garbage_held=next((status.garbage_held for status in working if status.garbage_held), ""),
        problems=list(dict.fromkeys(texts)),
    )


def _unhealthy(status: ControllerStatus) -> int:
    """Return the keys that need somebody; an older daemon does not count them."""
    counts = (status.failing_count, status.invalid_count, status.quarantined_count)
    return max(status.unhealthy, *counts)


def _covering(statuses: Sequence[ControllerStatus]) -> list[ControllerStatus]:
    """Return the statuses that together cover every key once.

    These are all members of a sharded controller, or else one daemon: the leader, or the first
    that runs alone, or the first that only plans if there is no other.
    """
    shards = [status for status in statuses if status.mode.startswith(Mode.SHARED)]
    if shards:
        return shards
    ranks = {"leader": 0, Mode.ALONE.value: 1, "": 2, "standby": 3}
    ordered = sorted(statuses, key=lambda status: ranks.get(status.mode, len(ranks)))
    return ordered[:1]


def _mode(statuses: Sequence[ControllerStatus], working: Sequence[ControllerStatus]) -> str:
    if not working:
        return ""
    if working[0].mode.startswith(Mode.SHARED):
        return "1 shard" if len(working) == 1 else f"{len(working)} shards"
    return counted(working[0].mode, Counter(status.mode for status in statuses)[Mode.ALONE])


def _lanes(lanes: Sequence[Lanes]) -> Lanes | None:
    """Return the lanes of several daemons together, in the order of one."""
    if not lanes:
        return None
    held, ready, waiting = (
        [key for lane in lanes for key in getattr(lane, place)]
        for place in ("held", "ready", "waiting")
    )
    return Lanes(
        held=sorted(held, key=lambda key: -key.s)[:LANE_MAX],
        ready=sorted(ready, key=lambda key: -key.s)[:LANE_MAX],
        waiting=sorted(waiting, key=lambda key: key.s)[:LANE_MAX],
    )


def _activity(activities: Sequence[Activity]) -> Activity | None:
    """Return the sums of several daemons by interval; the last intervals are the same time."""
    if not activities:
        return None
    length = max(len(activity.syncs) for activity in activities)
    syncs, failures = [0] * length, [0] * length
    for activity in activities:
        for number, (done, failed) in enumerate(
            zip(reversed(activity.syncs), reversed(activity.failures), strict=False), 1
        ):
            syncs[-number] += done
            failures[-number] += failed
    return Activity(syncs, failures, activities[0].interval_s)


def _sum(
    statuses: Sequence[ControllerStatus], count: Callable[[ControllerStatus], int | None]
) -> int | None:
    counts = [number for number in map(count, statuses) if number is not None]
    return sum(counts) if counts else None


def _max(numbers: Iterable[N | None]) -> N | None:
    return max((number for number in numbers if number is not None), default=None)


def _daemon(status: ControllerStatus) -> Daemon:
    return Daemon(
        id=status.daemon.id,
        name=str(status.daemon),
        answered=True,
        version=status.daemon.version,
        state=status.state,
        mode=status.mode,
        trouble=status.trouble,
        failure=status.failure,
        keys=status.keys,
    )


def problems_of(controller: ControllerStatuses) -> list[str]:
    """Return a line for each problem of a controller, and for each key that needs somebody."""
    row = controller.row
    shared = [f"{row.name}: {row.conflict}"] if row.conflict else []
    lines = (line for status in controller.statuses for line in _problems(status))
    return list(dict.fromkeys([*shared, *lines]))


def _problems(status: ControllerStatus) -> Iterator[str]:
    """Yield one line for each problem of a controller in one daemon."""
    name = status.controller
    if status.members:
        yield f"{name}: {_members(len(status.members))}"
    if status.trouble:
        yield f"{name}: {status.trouble}"
    if status.failure:
        yield f"{name}: {status.failure}"
    if status.paused_controller is not None:
        pause = status.paused_controller
        yield f"{name}: it is paused {pause}: natsctl resume --all -c {name}"
    if status.garbage_held:
        yield (
            f"{name}: garbage collection is held: {status.garbage_held}; "
            f"see natsctl repair gc -c {name}"
        )
    for text in status.concerns:
        yield f"{name}: {text}"
    for kind in status.missing_kinds:
        yield f"{name}: the cluster does not have the optional kind {kind}"
    yield from _keys(name, "is skipped", status.invalid, status.invalid_count)
    yield from _keys(name, "fails", status.failing, status.failing_count)
    yield from _keys(name, "is quarantined", status.quarantined, status.quarantined_count)
    yield from _keys(name, "is paused", status.paused, status.paused_count)
    yield from _keys(name, "is contested", status.contested, status.contested_count)


def _members(count: int) -> str:
    return "one member has all keys" if count == 1 else f"{count} members share the keys"


def _keys(controller: str, state: str, reasons: Mapping[str, str], count: int) -> Iterator[str]:
    for key, reason in reasons.items():
        yield f"{controller}: {key} {state}: {first_line(reason)}"
    if count > len(reasons):
        yield f"{controller}: and {count - len(reasons)} more"
