"""A listing of a kind's objects: in pages that are all of one revision."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec

from natsctl.errors import DECODE_ERRORS, StoreError
from natsctl.kubernetes.http.api_errors import ExpiredError
from natsctl.kubernetes.http.wire import Wire
from natsctl.kubernetes.resources.codec import Page, Reader, revision_of
from natsctl.kubernetes.watch.incarnation import Identity
from natsctl.model.store import Applied, Listed, Listing, WatchEvent

PAGE = 500  # objects asked for at once
LIST_S = 60.0  # how long a page, or the whole list, may take
NEWEST_S = 5.0  # how long it may take to say only how far the server is

_page = msgspec.json.Decoder(Page)


class Lister:
    """Lists the objects that *selection* means; what it shows was all there at once.

    Every list is consistent: it has everything that was written before it began.
    """

    def __init__(
        self,
        wire: Wire,
        reader: Reader,
        selection: Mapping[str, str],
        identity: Identity,
        *,
        size: int = PAGE,
    ) -> None:
        self._wire = wire
        self._reader = reader
        self._selection = selection
        self._identity = identity
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
        self._identity.fell_back(revision)
        yield Listing(str(self._identity))
        while True:
            for item in page.items or ():
                yield Applied(self._reader.stored(item))
            after = page.metadata.next_page
            if not after:
                break
            page = await self._page(path, {**self._selection, **limit, "continue": after})
            if revision_of(page.metadata.resource_version) != revision:
                raise ExpiredError(f"a list at {path} went on at another revision")
        yield Listed(revision)

    async def _page(self, path: str, query: dict[str, str], timeout_s: float = LIST_S) -> Page:
        reply = await self._wire.call(
            "GET", path, query=query, accept=self._reader.accept_list, timeout_s=timeout_s
        )
        try:
            return _page.decode(reply.body)
        except DECODE_ERRORS as error:
            raise StoreError(f"GET {path} answers with what is no list: {error}") from error
