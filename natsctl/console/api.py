"""Answers the questions of the page, by name."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from natsctl.console.access import Access
from natsctl.console.answers import Answer
from natsctl.console.home import home, members
from natsctl.console.keys import Keys
from natsctl.console.listings import Listings
from natsctl.console.roster import Roster
from natsctl.console.table import Query, Table
from natsctl.errors import NotFoundError, UsageError
from natsctl.jetstream.connection.connection import Connection

Parameters = Mapping[str, str]


class Session(Answer, frozen=True, kw_only=True):
    """The state of the console and of its connection."""

    csrf: str
    version: str
    connected: bool
    server: str
    since_s: float
    error: str


class Console:
    """The answers of one console, over one connection."""

    def __init__(self, connection: Connection, access: Access, *, version: str) -> None:
        self.access = access
        self._connection = connection
        self._version = version
        self._roster = Roster(connection)
        self._listings = Listings(connection)
        self._keys = Keys(connection, self._roster, self._listings)
        self._stopping = asyncio.Event()
        self._answers: dict[str, Callable[[Parameters], Awaitable[msgspec.Struct]]] = {
            "session": self._session,
            "home": lambda _: home(self._roster),
            "members": lambda _: members(self._roster),
            "keys": self._table,
            "objects": self._table,
        }

    async def answer(self, name: str, parameters: Parameters) -> msgspec.Struct:
        """Return an answer; raises `NotFoundError` if there is no such question."""
        question = self._answers.get(name)
        if question is None:
            raise NotFoundError(f"the console has no answer {name}")
        return await question(parameters)

    def stop(self) -> None:
        """End the streams of changes."""
        self._stopping.set()

    async def close(self) -> None:
        """End all watches and searches."""
        await self._listings.close()
        await self._roster.close()

    async def _session(self, _: Parameters) -> Session:
        state = self._connection.state()
        return Session(
            csrf=self.access.csrf,
            version=self._version,
            connected=state.connected,
            server=state.server,
            since_s=state.since_s,
            error=state.last_error or "",
        )

    async def _table(self, parameters: Parameters) -> Table:
        query = _query(parameters)
        controller, bucket = parameters.get("controller", ""), parameters.get("bucket", "")
        if controller:
            return await self._keys.of_controller(controller, query, bucket)
        if bucket:
            return await self._keys.of_bucket(bucket, query)
        raise UsageError("name a controller or a bucket")


def _query(parameters: Parameters) -> Query:
    given = {name: text for name, text in parameters.items() if name in Query.__struct_fields__}
    try:
        return msgspec.convert({k: v for k, v in given.items() if v}, Query, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"the query is not valid: {error}") from error
