"""Answers for the views of all controllers: the home view, and the members."""

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from natsctl.console.answers import Answer, Partial
from natsctl.console.roster import Roster
from natsctl.console.statuses import Daemon, Reports, Row, reports_of
from natsctl.errors import NoDaemonError

GROUPS_MAX = 50  # of failing keys
KEYS_MAX = 20  # of a group


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
    """A row per controller, and the failing keys, grouped by message."""

    controllers: list[Row]
    failing: list[Failures]
    no_daemon: bool = False


class Membership(msgspec.Struct, frozen=True):
    """The daemons of a controller; `leader` is empty if none leads."""

    name: str
    mode: str
    leader: str
    daemons: list[Daemon]


class Members(Answer, frozen=True, kw_only=True):
    """The daemons of each controller."""

    controllers: list[Membership]
    no_daemon: bool = False


async def home(roster: Roster) -> Home:
    """Return the state of all controllers; without a daemon there is none."""
    reports = await reports_of_all(roster)
    return Home(
        controllers=[report.row for report in reports],
        failing=_failures(reports),
        no_daemon=not reports,
        partial=_partial(report.row for report in reports),
    )


async def members(roster: Roster) -> Members:
    """Return who leads each controller, or which member has how many keys."""
    rows = [report.row for report in await reports_of_all(roster)]
    controllers = [
        Membership(row.name, row.mode, _leader(row.daemons), row.daemons) for row in rows
    ]
    return Members(controllers=controllers, no_daemon=not rows, partial=_partial(rows))


async def reports_of_all(roster: Roster) -> Sequence[Reports]:
    """Return the reports about each controller that a daemon runs."""
    try:
        daemons = await roster.daemons()
    except NoDaemonError:
        return ()
    return await asyncio.gather(*(reports_of(daemons, name) for name in daemons.controllers))


def _leader(daemons: Iterable[Daemon]) -> str:
    return next((daemon.name for daemon in daemons if daemon.mode == "leader"), "")


def _failures(reports: Iterable[Reports]) -> list[Failures]:
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


def _partial(rows: Iterable[Row]) -> Partial | None:
    """Return how many daemons of all controllers answered; None if all did."""
    answered: dict[str, bool] = {}
    names: dict[str, str] = {}
    for row in rows:
        for daemon in row.daemons:
            names[daemon.id] = daemon.name
            answered[daemon.id] = answered.get(daemon.id, True) and daemon.answered
    silent = sorted(names[id_] for id_, did in answered.items() if not did)
    return Partial(len(names) - len(silent), len(names), silent) if silent else None
