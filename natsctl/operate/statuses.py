"""Combines what the daemons of one controller report to one row."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from natsctl.daemon.client import Daemons
from natsctl.daemon.messages import Activity, ControllerStatus
from natsctl.daemon.peers import Mode, conflict, counted
from natsctl.errors import NatsctlError
from natsctl.model.pause import Pause
from natsctl.model.reports import LANE_MAX, Lanes, PrimarySource
from natsctl.operate.absent import DOWN, NO_PROCESS
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
        problem, state = problem_of(error), "no answer"
        row = StatusRow(
            name=name,
            state=state,
            daemons=[Daemon(id=id_, name=text) for id_, text in sorted(expected.items())],
            partial=missing(expected, set()),
            error=problem,
        )
        silent = ControllerStatus(controller=name, daemon=NO_PROCESS, state=state)
        failed = msgspec.structs.replace(silent, failure=problem.message)
        return ControllerStatuses(row, [], [failed])
    return combined(name, statuses, expected)


def combined(
    name: str, statuses: Sequence[ControllerStatus], expected: Mapping[str, str] | None = None
) -> ControllerStatuses:
    """Return what these daemons report about a controller as one row.

    *expected* has the names of the daemons that run it, by id; by default those that answered.
    """
    expected = expected or {}
    daemons = {id_: Daemon(id=id_, name=text) for id_, text in expected.items()}
    answered = {
        status.daemon.id: Daemon(
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
        for status in statuses
        if status.daemon.id
    }
    daemons |= answered
    working = _covering(statuses)
    sources = dict.fromkeys(source for status in statuses for source in status.sources)
    queues = [status.queue for status in working if status.queue is not None]
    pauses = [status.paused_controller for status in working]
    known = [status for status in working if status.state != DOWN]
    texts = [text for status in statuses for text in (status.trouble, status.failure) if text]
    row = StatusRow(
        name=name,
        sources=list(sources),
        daemons=sorted(daemons.values(), key=lambda daemon: (daemon.name, daemon.id)),
        partial=missing(expected, set(answered)),
        mode=_mode(statuses, working),
        conflict=conflict(statuses),
        state=working[0].state if working else statuses[0].state,
        primaries=_max(status.primaries for status in working),
        keys=_sum(status.keys for status in working),
        unhealthy=_sum(  # an older daemon does not count them
            max(one.unhealthy, one.failing_count, one.invalid_count, one.quarantined_count)
            for one in working
        ),
        failing=_sum(status.failing_count for status in working),
        invalid=_sum(status.invalid_count for status in known),
        paused=_sum(status.paused_count for status in known),
        quarantined=_sum(status.quarantined_count for status in working),
        contested=_sum(status.contested_count for status in known),
        paused_whole=next((pause for pause in pauses if pause is not None), None),
        queued=_sum(queue.depth for queue in queues),
        held=_sum(queue.held for queue in queues),
        waiting=_sum(queue.waiting for queue in queues),
        oldest_unanswered_s=_max(status.oldest_unanswered_s for status in working),
        lanes=_lanes([status.lanes for status in working if status.lanes is not None]),
        activity=_activity([status.activity for status in working if status.activity is not None]),
        garbage_held=next((status.garbage_held for status in working if status.garbage_held), ""),
        problems=list(dict.fromkeys(texts)),
    )
    return ControllerStatuses(row, working, list(statuses))


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
    held = sorted((key for lane in lanes for key in lane.held), key=lambda key: -key.s)
    ready = sorted((key for lane in lanes for key in lane.ready), key=lambda key: -key.s)
    waiting = sorted((key for lane in lanes for key in lane.waiting), key=lambda key: key.s)
    return Lanes(held, ready, waiting).limited(LANE_MAX)


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


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [number for number in counts if number is not None]
    return sum(known) if known else None


def _max(numbers: Iterable[N | None]) -> N | None:
    return max((number for number in numbers if number is not None), default=None)


def problems_of(controller: ControllerStatuses) -> list[str]:
    """Return a line for each problem of a controller, and for each key that needs somebody."""
    row = controller.row
    shared = [row.conflict] if row.conflict else []
    lines = (line for status in controller.statuses for line in _problems(status))
    return [f"{row.name}: {line}" for line in dict.fromkeys([*shared, *lines])]


def _problems(status: ControllerStatus) -> Iterator[str]:
    name, members, pause = status.controller, len(status.members), status.paused_controller
    if members:
        yield "one member has all keys" if members == 1 else f"{members} members share the keys"
    yield from filter(None, (status.trouble, status.failure))
    if pause is not None:
        yield f"it is paused {pause}: natsctl resume --all -c {name}"
    if status.garbage_held:
        held = f"garbage collection is held: {status.garbage_held}"
        yield f"{held}; see natsctl repair gc -c {name}"
    yield from status.concerns
    for kind in status.missing_kinds:
        yield f"the cluster does not have the optional kind {kind}"
    for state, reasons, count in (
        ("is skipped", status.invalid, status.invalid_count),
        ("fails", status.failing, status.failing_count),
        ("is quarantined", status.quarantined, status.quarantined_count),
        ("is paused", status.paused, status.paused_count),
        ("is contested", status.contested, status.contested_count),
    ):
        yield from (f"{key} {state}: {first_line(reason)}" for key, reason in reasons.items())
        if count > len(reasons):
            yield f"and {count - len(reasons)} more"
