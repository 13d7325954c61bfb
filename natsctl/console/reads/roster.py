"""Knows which daemons run, without asking for them at each request."""

import asyncio

from natsctl.console.answers import OldDaemonError
from natsctl.console.reads.background import retrieved
from natsctl.daemon.api.client import NO_DAEMON, Daemons
from natsctl.daemon.api.mode import Mode
from natsctl.daemon.api.verbs import Verb
from natsctl.errors import NatsctlError, NoDaemonError, UsageError
from natsctl.jetstream.connection.connection import Connection

FRESH_S = 2.0  # an older list of daemons is read again in the background
STALE_S = 10.0  # an older list of daemons is not used


class Roster:
    """The daemons of one connection, as they were found a few seconds ago at most."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._daemons: Daemons | None = None
        self._as_of = 0.0
        self._search: asyncio.Task[None] | None = None

    async def daemons(self) -> Daemons:
        """Return the daemons that run.

        Raises `NoDaemonError` if none answers, and the errors of `Daemons.find`.
        """
        age_s = asyncio.get_running_loop().time() - self._as_of
        if self._daemons is None or age_s > STALE_S:
            await asyncio.shield(self._searching())
        elif age_s > FRESH_S:
            self._searching()
        if self._daemons is None:
            raise NoDaemonError(NO_DAEMON)
        return self._daemons

    async def offering(self, verb: Verb, controller: str) -> Daemons:
        """Return the daemons that run, one of which answers the verb about the controller.

        Raises an error that states why none does: `UsageError` if the controller has no such verb
        or only plans, `OldDaemonError` if its daemons are too old, and the errors of `daemons` and
        `Daemons.controller`.
        """
        daemons = await self.daemons()
        daemons.controller(controller)
        if not daemons.offers(verb, controller):
            raise await _refusal(daemons, verb, controller)
        return daemons

    def _searching(self) -> "asyncio.Task[None]":
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._find(), name="daemons")
            self._search.add_done_callback(retrieved)
        return self._search

    async def _find(self) -> None:
        try:
            self._daemons = await Daemons.find(self._connection)
        except NoDaemonError:
            self._daemons = None
        self._as_of = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """End a search that is under way."""
        if self._search is not None:
            self._search.cancel()
            await asyncio.wait((self._search,))


async def _refusal(daemons: Daemons, verb: Verb, controller: str) -> NatsctlError:
    statuses = await daemons.status(controller)
    if all(status.mode == Mode.DRY_RUN for status in statuses):
        return UsageError(
            f"{controller} only plans, with natsctl run --dry-run: no daemon answers {verb}"
        )
    if verb.collects and daemons.offers(Verb.RESYNC, controller):
        return UsageError(f"{controller} makes no secondaries: it has no garbage")
    if verb.acts and not daemons.offers(Verb.RESYNC, controller):
        return NatsctlError(f"{controller} runs, but no daemon leads it now: try again")
    versions = ", ".join(sorted({status.daemon.version for status in statuses}))
    return OldDaemonError(
        f"no daemon of {controller} knows {verb}: the daemons have version {versions}, or the "
        "controller is of a sort without it"
    )
