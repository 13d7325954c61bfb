"""Answers for the views of all controllers: the home view, and the members."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

import msgspec

from natsctl.console.answers import Answer
from natsctl.daemon.api.client import Daemons
from natsctl.daemon.api.messages import ControllerStatus
from natsctl.errors import NatsctlError, NoDaemonError, PermissionDeniedError
from natsctl.jetstream.connection.connection import Connection
from natsctl.operate.absent import absent_statuses
from natsctl.operate.background import retrieved
from natsctl.operate.fleet import Fleet
from natsctl.operate.problems import Partial
from natsctl.operate.statuses import ControllerStatuses, Daemon, StatusRow, combined, reports_of

GROUPS_MAX = 50  # of failing keys
KEYS_MAX = 20  # of a group
SHARED_S = 0.25
ABSENT_S = 5.0  # after which controllers that no daemon runs are looked for again


class FailingKey(msgspec.Struct, frozen=True):
    """A key whose last sync failed."""

    controller: str
    key: str


class Failures(msgspec.Struct, frozen=True):
    """The keys that fail with the same message; `keys` names the first of them."""

    message: str
    count: int
    keys: list[FailingKey]


class Home(Answer, frozen=True, kw_only=True):
    """A row per controller, and the failing keys, grouped by message.

    `failing_more` counts the failing keys that daemons do not name.
    """

    controllers: list[StatusRow]
    failing: list[Failures]
    failing_more: int = 0
    no_daemon: bool = False


class ControllerDaemons(msgspec.Struct, frozen=True):
    """The daemons of a controller; `leader` is empty if none leads."""

    name: str
    mode: str
    leader: str
    daemons: list[Daemon]


class Members(Answer, frozen=True, kw_only=True):
    """The daemons of each controller."""

    controllers: list[ControllerDaemons]
    no_daemon: bool = False


class Overview:
    """The reports about all controllers; requests within `SHARED_S` share them."""

    def __init__(self, connection: Connection, fleet: Fleet) -> None:
        self._connection = connection
        self._fleet = fleet
        self._absent: list[ControllerStatus] = []
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

    async def _reports(self) -> Sequence[ControllerStatuses]:
        """Return the reports about each controller; those that no daemon runs come first.

        Raises `NatsctlError` without a connection: what is unknown must not look empty.
        """
        state = self._connection.state()
        if not state.connected:
            raise NatsctlError(f"no connection to NATS: {state.last_error or state.server}")
        try:
            daemons = await self._fleet.daemons()
        except NoDaemonError:
            daemons = Daemons(self._connection, ())
        names = daemons.controllers
        absent = await self._absent_ones(names)
        present = await asyncio.gather(*(reports_of(daemons, name) for name in names))
        return [*(combined(status.controller, [status]) for status in absent), *present]

    async def _absent_ones(self, running: Collection[str]) -> list[ControllerStatus]:
        """Return the status of each controller that no daemon runs, at most `ABSENT_S` old."""
        now = asyncio.get_running_loop().time()
        if now - self._absent_at >= ABSENT_S or self._running != running:
            with suppress(PermissionDeniedError):  # then only the daemons are known
                self._absent = await absent_statuses(self._connection, running)
            self._absent_at, self._running = now, running
        return self._absent

    async def home(self) -> Home:
        """Return the state of all controllers, also of those that no daemon runs."""
        reports = await self.reports()
        failing, rows = _failures(reports), [report.row for report in reports]
        known = sum(group.count for group in failing)
        return Home(
            controllers=rows,
            failing=failing,
            failing_more=sum(row.failing or 0 for row in rows) - known,
            no_daemon=not any(row.daemons for row in rows),
            partial=_partial(rows),
        )

    async def members(self) -> Members:
        """Return who leads each controller, or which member has how many keys."""
        rows = [report.row for report in await self.reports()]
        controllers = [
            ControllerDaemons(row.name, row.mode, _leader(row.daemons), row.daemons) for row in rows
        ]
        no_daemon = not any(row.daemons for row in rows)
        return Members(controllers=controllers, no_daemon=no_daemon, partial=_partial(rows))

    async def controllers_by_bucket(self) -> dict[str, list[str]]:
        """Return the controllers whose primaries are in each bucket."""
        controllers: dict[str, list[str]] = {}
        for report in await self.reports():
            for source in report.row.sources:
                controllers.setdefault(source.bucket, []).append(report.row.name)
        return controllers

    async def close(self) -> None:
        """End a read that is under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))


def _leader(daemons: Iterable[Daemon]) -> str:
    return next((daemon.name for daemon in daemons if daemon.mode == "leader"), "")


def _failures(reports: Iterable[ControllerStatuses]) -> list[Failures]:
    groups: dict[str, list[FailingKey]] = {}
    for report in reports:
        for status in report.working:
            for key, message in status.failing.items():
                groups.setdefault(message, []).append(FailingKey(report.row.name, key))
    largest = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return [
        Failures(message, len(keys), sorted(keys, key=lambda key: key.key)[:KEYS_MAX])
        for message, keys in largest[:GROUPS_MAX]
    ]


def _partial(rows: Iterable[StatusRow]) -> Partial | None:
    """Return how many daemons of all controllers answered; None if all did."""
    answered: dict[str, bool] = {}
    names: dict[str, str] = {}
    for row in rows:
        for daemon in row.daemons:
            names[daemon.id] = daemon.name
            answered[daemon.id] = answered.get(daemon.id, True) and daemon.answered
    silent = sorted(names[id_] for id_, has_answered in answered.items() if not has_answered)
    return Partial(len(names) - len(silent), len(names), silent) if silent else None
