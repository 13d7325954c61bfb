"""Lists a kind's objects in pages of one revision, and notices a server restored from a backup."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec

from natsctl.errors import DECODE_ERRORS, StoreError
from natsctl.kubernetes.http.api_errors import ExpiredError
from natsctl.kubernetes.http.wire import Wire
from natsctl.kubernetes.resources.codec import ObjectDecoder, revision_of
from natsctl.model.store import Applied, Listed, Listing, WatchEvent

PAGE = 500  # objects per page
LIST_S = 60.0  # timeout of a page, or of a list without pages
NEWEST_S = 5.0  # timeout of a request for only the newest revision


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    next_page: str = msgspec.field(default="", name="continue")  # empty on the last page


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


_page = msgspec.json.Decoder(_Page)


class Incarnation:
    """Identifies the state of a server by its URL and by how often it was restored from a backup.

    Revisions only grow. If a consistent list has a lower revision than one seen before, the server
    was restored from a backup, and revisions seen before are no longer valid.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._restores = 0
        self._highest = 0

    def __str__(self) -> str:
        return f"{self._server}#{self._restores}" if self._restores else self._server

    def saw(self, revision: int) -> None:
        """Record that *revision* was seen."""
        self._highest = max(self._highest, revision)

    def detect_restore(self, revision: int) -> bool:
        """Return whether a server whose newest revision is *revision* was restored from a backup.

        After that, this object identifies the restored server.
        """
        restored = revision < self._highest
        if restored:
            self._restores += 1
            self._highest = 0
        self.saw(revision)
        return restored


class Lister:
    """Lists the objects that *selection* selects.

    Every list shows one revision, and includes every write made before the list began.
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
        """Yield the objects; if a page has expired, list again without pages."""
        try:
            async with aclosing(self._pages(path, {"limit": str(self._size)})) as events:
                async for event in events:
                    yield event
        except ExpiredError:
            async with aclosing(self._pages(path, {})) as events:
                async for event in events:
                    yield event

    async def newest(self, path: str) -> int:
        """Return the newest revision of the server.

        The request has no label selector, because an old server would search all objects for a
        match. It has the name, because a Role may permit only that name.
        """
        query = {"limit": "1"}
        if "fieldSelector" in self._selection:
            query["fieldSelector"] = self._selection["fieldSelector"]
        page = await self._page(path, query, NEWEST_S)
        return revision_of(page.metadata.resource_version)

    async def _pages(self, path: str, limit: dict[str, str]) -> AsyncGenerator[WatchEvent, None]:
        page = await self._page(path, {**self._selection, **limit})
        revision = revision_of(page.metadata.resource_version)
        self._incarnation.detect_restore(revision)
        yield Listing(str(self._incarnation))
        while True:
            for item in page.items or ():
                yield Applied(self._decoder.stored(item))
            next_page = page.metadata.next_page
            if not next_page:
                break
            page = await self._page(path, {**self._selection, **limit, "continue": next_page})
            if revision_of(page.metadata.resource_version) != revision:
                raise ExpiredError(f"the pages of {path} have different revisions")
        yield Listed(revision)

    async def _page(self, path: str, query: dict[str, str], timeout_s: float = LIST_S) -> _Page:
        reply = await self._wire.call(
            "GET", path, query=query, accept=self._decoder.accept_list, timeout_s=timeout_s
        )
        try:
            return _page.decode(reply.body)
        except DECODE_ERRORS as error:
            raise StoreError(f"GET {path} returned an invalid list: {error}") from error
