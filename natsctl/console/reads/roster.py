"""Knows which daemons run, without asking for them at each request."""

import asyncio

from natsctl.console.reads.background import retrieved
from natsctl.daemon.api.client import NO_DAEMON, Daemons
from natsctl.errors import NoDaemonError
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
