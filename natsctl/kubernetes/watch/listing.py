"""A listing of a kind's objects: in pages that are all of one revision."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec

from natsctl.errors import DECODE_ERRORS, StoreError
from natsctl.kubernetes.http.api_errors import ExpiredError
from natsctl.kubernetes.http.wire import Wire
from natsctl.kubernetes.resources.codec import ObjectDecoder, Page, revision_of
from natsctl.model.store import Applied, Listed, Listing, WatchEvent

PAGE = 500  # objects asked for at once
LIST_S = 60.0  # how long a page, or the whole list, may take
NEWEST_S = 5.0  # how long it may take to say only how far the server is

_page = msgspec.json.Decoder(Page)


class Incarnation:
    """Names the incarnation of one kind's objects at a server.

    Revisions only grow. Where a consistent list is behind what was seen before, they have been
    made anew, and old ones mean nothing now.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._fallbacks = 0
        self._reached = 0

    def __str__(self) -> str:
        return f"{self._server}#{self._fallbacks}" if self._fallbacks else self._server

    def reached(self, revision: int) -> None:
        """Remember that *revision* was seen."""
        self._reached = max(self._reached, revision)

    def fell_back(self, revision: int) -> bool:
        """Say whether a server that is at *revision* now is another incarnation than before.

        It is then the one that is meant from now on.
        """
        fell_back = revision < self._reached
        if fell_back:
            self._fallbacks += 1
            self._reached = 0
        self.reached(revision)
        return fell_back


class Lister:
    """Lists the objects that *selection* means; what it shows was all there at once.

    Every list is consistent: it has everything that was written before it began.
    """

    def __init__(
        self,
        wire: Wire,
        decoder: ObjectDecoder,
        selection: Mapping[str, str],
        incarnation: Incarnation,
        *,
        size: int = PAGE,
    ) -> None:
        self._wire = wire
        self._decoder = decoder
        self._selection = selection
        self._incarnation = incarnation
        self._size = size

    async def events(self, path: str) -> AsyncGenerator[WatchEvent, None]:
        """Tell what is there; once more, in one piece, where a page comes too late for that."""
        try:
            async with aclosing(self._pages(path, {"limit": str(self._size)})) as events:
                async for event in events:
                    yield event
        except ExpiredError:
            async with aclosing(self._pages(path, {})) as events:
                async for event in events:
                    yield event

    async def newest(self, path: str) -> int:
        """Return the revision at which the server is.

        No labels are asked for: an old server would look through all objects for one that has
        them. The name is, because a Role may allow only that one.
        """
        named = {name: value for name, value in self._selection.items() if name == "fieldSelector"}
        page = await self._page(path, {**named, "limit": "1"}, NEWEST_S)
        return revision_of(page.metadata.resource_version)

    async def _pages(self, path: str, limit: dict[str, str]) -> AsyncGenerator[WatchEvent, None]:
        page = await self._page(path, {**self._selection, **limit})
        revision = revision_of(page.metadata.resource_version)
        self._incarnation.fell_back(revision)
        yield Listing(str(self._incarnation))
        while True:
            for item in page.items or ():
                yield Applied(self._decoder.stored(item))
            after = page.metadata.next_page
            if not after:
                break
            page = await self._page(path, {**self._selection, **limit, "continue": after})
            if revision_of(page.metadata.resource_version) != revision:
                raise ExpiredError(f"a list at {path} went on at another revision")
        yield Listed(revision)

    async def _page(self, path: str, query: dict[str, str], timeout_s: float = LIST_S) -> Page:
        reply = await self._wire.call(
            "GET", path, query=query, accept=self._decoder.accept_list, timeout_s=timeout_s
        )
        try:
            return _page.decode(reply.body)
        except DECODE_ERRORS as error:
            raise StoreError(f"GET {path} answers with what is no list: {error}") from error
