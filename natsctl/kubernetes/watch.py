"""Watches a kind without losing a change: a full list, then every change, or an error.

A kube-apiserver sends every change after a revision, or reports that it no longer has all of them.
When a request ends, the next one resumes at the last revision. If the server can't resume, the
watch breaks, and the next watch lists again.
"""

import asyncio
import math
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from natsctl.errors import (
    DECODE_ERRORS,
    InvalidObjectError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreMissingError,
    WatchBrokenError,
)
from natsctl.kubernetes.api_errors import ExpiredError, RequestInfo, error_for, read_status
from natsctl.kubernetes.codec import ObjectDecoder, revision_of
from natsctl.kubernetes.transport import Wire
from natsctl.model.manifests import KubeKind
from natsctl.model.store import Applied, Deleted, Listed, Listing, WatchEvent
from natsctl.telemetry.logger import get_logger

TIMEOUT_S = 60.0  # the longest duration of a watch request
GRACE_S = 5.0  # a server may end a request this much later

_INITIAL_END = "k8s.io/initial-events-end"
_EVERYTHING = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}


class _Line(msgspec.Struct, frozen=True, gc=False):
    type: str
    object: msgspec.Raw


class _BookmarkMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] = {}


class _Bookmark(msgspec.Struct, frozen=True):
    """The revision up to which a watch has sent every change."""

    metadata: _BookmarkMetadata


_line = msgspec.json.Decoder(_Line)
_bookmark = msgspec.json.Decoder(_Bookmark)


class Streams:
    """Watches the objects that *selection* selects, one request at a time.

    Attributes:
        revision: the revision from which the next request resumes; 0 until the initial objects
            were all received.
        requests: the number of requests so far. Each ends after a random part of *timeout_s*.
    """

    def __init__(
        self,
        wire: Wire,
        decoder: ObjectDecoder,
        selection: Mapping[str, str],
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.revision = 0
        self.requests = 0
        self._wire = wire
        self._decoder = decoder
        self._selection = selection
        self._timeout_s = timeout_s

    async def events(self, path: str) -> AsyncGenerator[WatchEvent, None]:
        """Yield every change after `revision`; if it is 0, yield the existing objects first.

        Raises `ExpiredError` if the server no longer has all changes after `revision`, and
        `WatchBrokenError` if the connection breaks or is silent for too long.
        """
        self.requests += 1
        start = {"resourceVersion": str(self.revision)} if self.revision else _EVERYTHING
        timeout_s = self._timeout_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter only
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(timeout_s))),
            **self._selection,
            **start,
        }
        async with self._wire.stream(
            path, query=query, accept=self._decoder.accept, silence_s=timeout_s + GRACE_S
        ) as lines:
            async for line in lines:
                event = self._event(line)
                if event is not None:
                    yield event

    def _event(self, text: bytes) -> WatchEvent | None:
        try:
            line = _line.decode(text)
            if line.type == "BOOKMARK":
                return self._bookmarked(_bookmark.decode(line.object))
        except DECODE_ERRORS as error:
            raise WatchBrokenError(f"invalid line of a watch: {error}") from error
        if line.type == "ERROR":
            status = read_status(0, bytes(line.object))
            # after any error, the watch may have missed changes
            raise ExpiredError(str(error_for(status, RequestInfo("continue the watch"))))
        stored = self._decoder.sent(bytes(line.object))
        if self.revision:
            self.revision = stored.revision
        if line.type == "DELETED":
            return Deleted(stored.key, stored.revision)
        return Applied(stored)

    def _bookmarked(self, bookmark: _Bookmark) -> Listed | None:
        """Update `revision`; return `Listed` if the bookmark ends the initial objects."""
        revision = revision_of(bookmark.metadata.resource_version)
        if self.revision:
            self.revision = revision
        elif _INITIAL_END in bookmark.metadata.annotations:
            self.revision = revision
            return Listed(revision)
        return None


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


log = get_logger(__name__)

TRIES = 3  # attempts in a row to resume before the watch breaks
PAUSE_S = 0.1  # pause before the first attempt, doubled for each further one
HEALTHY_S = 1.0  # a request that lasts longer resets the number of attempts
STREAMING_LISTS = (1, 32)  # the first version that can list within a watch

_DIGITS = re.compile(r"\d+")
_DENIED = (NotFoundError, PermissionDeniedError, StoreMissingError)  # in pages too
_FINAL = (*_DENIED, ExpiredError, InvalidObjectError)  # errors that a prompt retry cannot fix

Events = AsyncGenerator[WatchEvent, None]


class KubeWatch:
    """Watches the objects of one kind that its namespace, its labels and its name select.

    *path* returns the path of the objects. Each request ends after *timeout_s* at most, and is
    replaced if no byte arrives for that long.
    """

    def __init__(
        self,
        wire: Wire,
        kind: KubeKind[Any],
        decoder: ObjectDecoder,
        path: Callable[[], Awaitable[str]],
        incarnation: Incarnation,
        *,
        page: int = PAGE,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._wire = wire
        self._name = kind.name
        self._path = path
        self._decoder = decoder
        self._selection = _selection(kind)
        self._incarnation = incarnation
        self._timeout_s = timeout_s
        self._lister = Lister(wire, self._decoder, self._selection, incarnation, size=page)
        self._rejected = False  # whether the server rejected a list within a watch

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Establish the watch; leaving the context closes its connection.

        Iterating raises `WatchBrokenError` if the server no longer has all changes or cannot be
        reached in a few attempts, `StoreMissingError` if it does not have the kind, and
        `PermissionDeniedError` if the user may not watch the kind.
        """
        async with aclosing(self._events(await self._path())) as events:
            yield events

    async def _events(self, path: str) -> Events:
        streams = Streams(self._wire, self._decoder, self._selection, timeout_s=self._timeout_s)
        for phase in (self._list(path, streams), self._follow(path, streams)):
            async with aclosing(phase) as events:
                async for event in events:
                    yield event

    async def _list(self, path: str, streams: Streams) -> Events:
        """Yield the existing objects; list within a watch if the server supports that.

        If such a list fails for any reason that a list in pages may not have, list in pages.
        """
        if not self._rejected and await streams_lists(self._wire):
            try:
                async with aclosing(self._list_within_watch(path, streams)) as events:
                    async for event in events:
                        yield event
            except StoreError as error:
                if streams.revision or isinstance(error, _DENIED):
                    raise
                # after status 400, never again: the server does not know the parameters
                self._rejected = isinstance(error, InvalidObjectError)
                log.info("listing in pages instead of a watch", kind=self._name, error=error)
            else:
                return
        async with aclosing(self._lister.events(path)) as events:
            async for event in events:
                if isinstance(event, Listed):
                    streams.revision = event.revision
                yield event

    async def _list_within_watch(self, path: str, streams: Streams) -> Events:
        """Yield the existing objects, then changes until the request ends."""
        yield Listing(str(self._incarnation))
        try:
            async with aclosing(streams.events(path)) as events:
                async for event in events:
                    self._check_restore(event)
                    yield event
        except _FINAL:
            raise
        except StoreError:
            if not streams.revision:
                raise
        if not streams.revision:
            raise WatchBrokenError(f"a watch of {self._name} ended before the list was complete")

    async def _follow(self, path: str, streams: Streams) -> Events:
        """Yield the changes after the list; resume when a request ends or breaks."""
        clock = asyncio.get_running_loop().time
        tries = 1 if streams.requests else 0
        while True:
            failure: StoreError | None = None
            started = math.inf
            try:
                if tries:
                    await self._check_revision(path, streams.revision)
                started = clock()
                async with aclosing(streams.events(path)) as events:
                    async for event in events:
                        self._check_restore(event)
                        yield event
            except _FINAL:
                raise
            except StoreError as error:
                failure = error
            tries = 1 if clock() - started > HEALTHY_S else tries + 1
            if tries > TRIES:
                reason = failure or "the server ends each request"
                raise WatchBrokenError(f"cannot watch {self._name}: {reason}") from failure
            await asyncio.sleep(PAUSE_S * 2 ** (tries - 1) * random.uniform(0.5, 1.0))  # noqa: S311 - jitter only

    async def _check_revision(self, path: str, revision: int) -> None:
        """Raise `ExpiredError` if the server is behind *revision*; it would send no changes."""
        newest = await self._lister.newest(path)
        if newest < revision:
            raise ExpiredError(
                f"the server is at revision {newest} of {self._name}, but {revision} was seen "
                "before: the server was restored from a backup"
            )

    def _check_restore(self, event: WatchEvent) -> None:
        """Raise `ExpiredError` if the event shows that the server was restored from a backup."""
        match event:
            case Applied():
                self._incarnation.saw(event.stored.revision)
            case Deleted():
                self._incarnation.saw(event.revision)
            case Listed() if self._incarnation.detect_restore(event.revision):
                raise ExpiredError(f"the server was restored from a backup of {self._name}")


def _selection(kind: KubeKind[Any]) -> dict[str, str]:
    """Return the query parameters that select the objects of the kind."""
    query = {}
    if kind.selector.requirements:
        query["labelSelector"] = str(kind.selector)
    if kind.object_name is not None:
        query["fieldSelector"] = f"metadata.name={kind.object_name}"
    return query


class _Version(msgspec.Struct, frozen=True):
    major: str = ""
    minor: str = ""  # some providers add a character: 32+


async def streams_lists(wire: Wire) -> bool:
    """Return whether the server's version can list within a watch."""
    try:
        reply = await wire.call("GET", "/version")
        version = msgspec.json.decode(reply.body, type=_Version)
    except (StoreError, *DECODE_ERRORS):
        return False  # every server can list in pages
    major, minor = (_DIGITS.match(part) for part in (version.major, version.minor))
    if major is None or minor is None:
        return False
    return (int(major[0]), int(minor[0])) >= STREAMING_LISTS
