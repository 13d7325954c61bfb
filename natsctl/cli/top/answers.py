"""Answers the questions of the terminal's views, with the same functions as the page's console."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from natsctl.console.actions import ActionReport, Actions, Request, Screen
from natsctl.console.answers import Problem, problem_of
from natsctl.console.home import Home, Overview
from natsctl.console.keys import Keys, states_of
from natsctl.console.reads.listings import Listings
from natsctl.console.reads.roster import Roster
from natsctl.console.statuses import StatusRow
from natsctl.core.insight.tree import Branch
from natsctl.daemon.api.messages import KeyExplanation
from natsctl.daemon.api.verbs import Verb
from natsctl.errors import NatsctlError
from natsctl.jetstream.connection.connection import Connection, ConnectionState


class KeyState(msgspec.Struct, frozen=True):
    """The explanations of a key by its daemons, and its tree or the reason why there is none."""

    explanations: list[KeyExplanation]
    tree: Branch | Problem


class ControllerState(msgspec.Struct, frozen=True):
    """A controller, and its keys that need attention, each with its state and the reason.

    Attributes:
        row: the state of the controller; None if no daemon runs it.
        keys: some of its quarantined, invalid, failing and paused keys.
        no_daemon: whether no daemon runs at all.
    """

    row: StatusRow | None
    keys: dict[str, tuple[str, str]]
    no_daemon: bool = False


class Answers:
    """The answers of daemons over one connection, and the actions of a user.

    Each call has a deadline. It raises `NatsctlError`, and `TimeoutError` if a daemon does not
    answer in time.
    """

    def __init__(
        self, connection: Connection, roster: Roster, overview: Overview, actions: Actions
    ) -> None:
        self._connection = connection
        self._roster, self._overview, self._actions = roster, overview, actions

    def connection(self) -> ConnectionState:
        """Return the state of the connection to NATS."""
        return self._connection.state()

    async def home(self) -> Home:
        """Return the state of all controllers."""
        return await self._overview.home()

    async def controller(self, name: str) -> ControllerState:
        """Return the state of a controller and of its keys that need attention."""
        all_reports = await self._overview.reports()
        for reports in all_reports:
            if reports.row.name == name:
                return ControllerState(reports.row, states_of(reports))
        return ControllerState(None, {}, no_daemon=not all_reports)

    async def key(self, controller: str, key: str) -> KeyState:
        """Return the state of a key."""
        daemons = await self._roster.offering(Verb.EXPLAIN, controller)
        explanations = await daemons.explain(controller, key)
        try:
            daemons = await self._roster.offering(Verb.TREE, controller)
            return KeyState(explanations, await daemons.tree(controller, key))
        except (NatsctlError, TimeoutError) as error:
            return KeyState(explanations, problem_of(error))

    async def act(self, action: str, request: Request) -> ActionReport:
        """Resync, pause or resume keys or a whole controller."""
        return await self._actions.act(action, msgspec.json.encode(request))


@asynccontextmanager
async def live_answers(connection: Connection) -> AsyncIterator[Answers]:
    """Yield the answers of the daemons that the connection reaches."""
    roster, listings = Roster(connection), Listings(connection)
    overview = Overview(roster)
    keys = Keys(connection, roster, listings)
    actions = Actions(connection, roster, keys, {}, screen=Screen.TOP)
    try:
        yield Answers(connection, roster, overview, actions)
    finally:
        await overview.close()
        await listings.close()
        await roster.close()
