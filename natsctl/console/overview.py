"""Answers for the views of everything: the controllers, their troubles, and the buckets."""

import asyncio
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Literal, get_args

import msgspec

from natsctl.console.answers import Fields, answer
from natsctl.core.task_group import for_each
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import NatsctlError, NotFoundError, PermissionDeniedError
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.store import bucket_names
from natsctl.operate.fleet import Fleet, retrieved
from natsctl.operate.statuses import (
    DOWN,
    ControllerStatuses,
    Partial,
    StatusRow,
    absent_statuses,
    known_controllers,
    missing,
    problem_of,
    reports_of,
)

CAUSES_MAX = 50
EXAMPLES_MAX = 5  # keys that a cause names
SHARED_S = 0.25
ABSENT_S = 5.0  # after which controllers that no daemon runs are looked for again
BUCKETS_MAX = 500
READS = 16  # buckets that are read at the same time

State = Literal["quarantined", "invalid", "failing", "paused"]
"""The state of a key that isn't simply synced; the most urgent one comes first."""

_VARYING = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\b0x[0-9a-f]+\b|\b(?=[a-f]*\d)[0-9a-f]{8,}\b|\d+(?:[.:]\d+)*"
)


class FailureCause(msgspec.Struct, frozen=True, kw_only=True):
    """Keys in trouble for a reason, without what varies between them, and since when."""

    controller: str
    state: State
    message: str
    count: int
    keys: list[str]
    since: str = ""


class Overview:
    """The reports about all controllers; requests within `SHARED_S` share them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._connection = fleet.connection
        self._absent: list[ControllerStatuses] = []  # that no daemon runs
        self._absent_at = -ABSENT_S
        self._running: Collection[str] = ()
        self._reading: asyncio.Task[Sequence[ControllerStatuses]] | None = None
        self._read_at = 0.0

    async def reports(self) -> Sequence[ControllerStatuses]:
        """Return the reports; raises as `Fleet.daemons` does, except for `NoDaemonError`."""
        now = asyncio.get_running_loop().time()
        if self._reading is None or (self._reading.done() and now - self._read_at > SHARED_S):
            self._reading = asyncio.create_task(self._reports(), name="statuses")
            self._reading.add_done_callback(retrieved)
            self._read_at = now
        return await asyncio.shield(self._reading)

    async def report(self, name: str) -> ControllerStatuses:
        reports = await self.reports()
        for report in reports:
            if report.row.name == name:
                return report
        names = [report.row.name for report in reports]
        advice = did_you_mean(name, names) or (f": there are {', '.join(names)}" if names else "")
        raise NotFoundError(f"no controller {name} exists{advice}")

    async def _reports(self) -> Sequence[ControllerStatuses]:
        """Return the reports about each controller; those that no daemon runs come first.

        Raises `NatsctlError` without a connection: what is unknown mustn't look empty.
        """
        state, now = self._connection.state(), asyncio.get_running_loop().time()
        if not state.connected:
            raise NatsctlError(f"no connection to NATS: {state.last_error or state.server}")
        daemons = await self._fleet.any_daemons()
        names = daemons.controllers
        if now - self._absent_at >= ABSENT_S or self._running != names:
            with suppress(PermissionDeniedError):  # then only the daemons are known
                known = await known_controllers(self._connection)
                self._absent = absent_statuses(known, names)
            self._absent_at, self._running = now, names
        present = await asyncio.gather(*(reports_of(daemons, name) for name in names))
        return [*self._absent, *present]

    async def home(self) -> Fields:
        reports = await self.reports()
        rows = [report.row for report in reports]
        causes = [cause for report in reports for cause in _causes(report)]
        causes.sort(key=lambda cause: (-cause.count, cause.controller, cause.message))
        counts = ((row.failing, row.invalid, row.quarantined) for row in rows)
        total = sum(count or 0 for numbers in counts for count in numbers)
        return answer(
            controllers=rows,
            need=[row.name for row in rows if needs_somebody(row)],
            causes=causes[:CAUSES_MAX],
            more=max(0, total - sum(cause.count for cause in causes[:CAUSES_MAX])),
            no_daemon=not any(row.daemons for row in rows),
            partial=_partial(rows),
        )

    async def buckets(self) -> Fields:
        controllers: dict[str, list[str]] = {}
        with suppress(NatsctlError, TimeoutError):
            for report in await self.reports():
                for source in report.row.sources:
                    controllers.setdefault(source.bucket, []).append(report.row.name)
        names = await bucket_names(self._connection)
        rows: dict[str, Fields] = {name: {"name": name} for name in names[:BUCKETS_MAX]}

        async def read(name: str) -> None:
            state, config, problem = dict[str, int](), dict[str, int](), None
            try:
                info = await Bucket(self._connection, name).info()
                state, config = info["state"], info["config"]
            except (NatsctlError, TimeoutError) as error:
                problem = problem_of(error)
            rows[name] |= {
                "values": state.get("num_subjects", None if problem else 0),
                "bytes": state.get("bytes"),
                "history": config.get("max_msgs_per_subject"),
                "controllers": controllers.get(name, []),
                "error": problem,
            }

        await for_each(rows, read, workers=READS)
        return answer(buckets=list(rows.values()), more=len(names) - len(rows))

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))


def needs_somebody(row: StatusRow) -> bool:
    """Return whether a person should look at the controller."""
    troubles = (row.unhealthy, row.conflict, row.error, row.garbage_held, row.problems)
    return row.state == DOWN or any(troubles)


def states_of(report: ControllerStatuses) -> dict[str, tuple[State, str]]:
    """Return the state and the reason of each key that daemons name, the most urgent state."""
    states: dict[str, tuple[State, str]] = {}
    for status in report.working:
        for state in get_args(State):
            for key, reason in getattr(status, state).items():
                states.setdefault(key, (state, reason))
    return states


def cause_of(key: str, message: str) -> str:
    """Return a message without what varies between keys: the key, numbers and ids."""
    whole_key = rf"(?<![\w.-]){re.escape(key)}(?![\w-])"
    return _VARYING.sub("…", re.sub(whole_key, "…", message))


def _causes(report: ControllerStatuses) -> list[FailureCause]:
    groups: dict[tuple[State, str], list[str]] = {}
    for key, (state, reason) in states_of(report).items():
        if state != "paused":
            groups.setdefault((state, cause_of(key, reason)), []).append(key)
    since: dict[str, str] = {}
    for status in report.working:
        since |= {key: time.isoformat() for key, time in status.failing_since.items()}
    return [
        FailureCause(
            controller=report.row.name,
            state=state,
            message=message,
            count=len(keys),
            keys=sorted(keys)[:EXAMPLES_MAX],
            since=min((since[key] for key in keys if key in since), default=""),
        )
        for (state, message), keys in groups.items()
    ]


def _partial(rows: Iterable[StatusRow]) -> Partial | None:
    daemons = [daemon for row in rows for daemon in row.daemons]
    silent = {daemon.id for daemon in daemons if not daemon.answered}
    names = {daemon.id: daemon.name for daemon in daemons}
    return missing(names, names.keys() - silent)
