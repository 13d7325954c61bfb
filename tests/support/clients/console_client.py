"""A browser of the console, as far as a test needs one: requests with the token of the page."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from aiohttp import ClientSession

from natsctl import NatsOptions
from natsctl.console.api import Console, MakePlan
from natsctl.console.http import ConsoleAccess, serving
from natsctl.jetstream.connection import connect

NO_PLANNERS: Mapping[str, MakePlan] = {}


class Reply(NamedTuple):
    """The status and the body of an answer."""

    status: int
    body: Any

    @property
    def problem(self) -> tuple[str, str]:
        """The reason and the text of an error."""
        return self.body["error"]["reason"], self.body["error"]["message"]


class ConsoleClient:
    """Sends requests to a console. `url` has the token, `origin` is the URL without a path."""

    def __init__(self, access: ConsoleAccess, url: str, session: ClientSession) -> None:
        self.access = access
        self.url = url
        self.session = session
        parts = urlsplit(url)
        self.origin = f"{parts.scheme}://{parts.netloc}"

    def sign_in(self) -> None:
        """Send the token from now on."""
        self.session.headers["Authorization"] = f"Bearer {self.access.token}"

    async def get(self, name: str, **parameters: str | int) -> Reply:
        """Return an answer of the console."""
        async with self.session.get(f"{self.origin}/api/{name}", params=parameters) as answer:
            return Reply(answer.status, await answer.json())

    async def read(self, name: str, **parameters: str | int) -> Any:
        """Return the body of a successful answer."""
        reply = await self.get(name, **parameters)
        assert reply.status == 200, reply
        return reply.body

    async def act(self, action: str, **body: object) -> Reply:
        """Request an action."""
        url = f"{self.origin}/api/actions/{action}"
        async with self.session.post(url, json=body) as answer:
            return Reply(answer.status, await answer.json())

    @asynccontextmanager
    async def live(self, **parameters: str) -> AsyncIterator["Live"]:
        """Open the stream of changes of a view."""
        url = f"{self.origin}/api/live"
        async with self.session.get(url, params=parameters) as answer:
            assert answer.status == 200
            yield Live(answer.content)


class Live:
    """The server-sent events of a view."""

    def __init__(self, content: asyncio.StreamReader | Any) -> None:
        self._content = content

    async def next(self, wanted: str, **fields: object) -> Any:
        """Return the data of the next event of this name with these fields."""
        async with asyncio.timeout(60):
            while True:
                name = (await self._content.readline()).decode().removeprefix("event: ").strip()
                data = json.loads((await self._content.readline()).decode().removeprefix("data: "))
                await self._content.readline()
                if name == wanted and all(data[field] == value for field, value in fields.items()):
                    return data

    async def ended(self) -> bool:
        """Read the stream to its end."""
        async with asyncio.timeout(60):
            await self._content.read()
        return True


@asynccontextmanager
async def console_on(
    options: NatsOptions | str,
    *,
    planners: Mapping[str, MakePlan] = NO_PLANNERS,
    host: str = "127.0.0.1",
    signed_in: bool = True,
) -> AsyncIterator[ConsoleClient]:
    """Run a console in this process, and open a client of it."""
    async with connect(options) as connection:
        access = ConsoleAccess(host)
        console = Console(connection, planners)
        try:
            async with serving(console, access, host, 0) as url, ClientSession() as session:
                client = ConsoleClient(access, url, session)
                if signed_in:
                    client.sign_in()
                yield client
        finally:
            await console.close()
