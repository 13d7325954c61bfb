"""Watches a kind without losing a change: a full list, then every change, or an error.

A kube-apiserver sends every change after a revision, or reports that it no longer has all of them.
When a request ends, the next one resumes at the last revision. If the server can't resume, the
watch breaks, and the next watch lists again.
"""

import asyncio
import math
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
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
from natsctl.kubernetes.api_errors import (
    ExpiredError,
    KindMissingError,
    RequestInfo,
    error_for,
    read_status,
)
from natsctl.kubernetes.codec import ObjectDecoder, revision_of
from natsctl.kubernetes.transport import Transport
from natsctl.model.manifests import KubeKind
from natsctl.model.store import Applied, Deleted, Listed, Listing, WatchEvent
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

TIMEOUT_S = 60.0  # the longest duration of a watch request
GRACE_S = 5.0  # a server may end a request this much later
PAGE = 500  # objects per page
LIST_S = 60.0  # timeout of a page, or of a list without pages
NEWEST_S = 5.0  # timeout of a request for only the newest revision
TRIES = 3  # attempts in a row to resume before the watch breaks
PAUSE_S = 0.1  # pause before the first attempt, doubled for each further one
HEALTHY_S = 1.0  # a request that lasts longer resets the number of attempts
STREAMING_LISTS = (1, 32)  # the first version that can list within a watch

_INITIAL_END = "k8s.io/initial-events-end"
_EVERYTHING = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
_DIGITS = re.compile(r"\d+")
_DENIED = (NotFoundError, PermissionDeniedError, StoreMissingError)  # in pages too
_FINAL = (*_DENIED, ExpiredError, InvalidObjectError)  # errors that a prompt retry cannot fix

Events = AsyncGenerator[WatchEvent, None]


class _Line(msgspec.Struct, frozen=True, gc=False):
    type: str
    object: msgspec.Raw


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] = {}
    next_page: str = msgspec.field(default="", name="continue")  # empty on the last page


class _Page(msgspec.Struct, frozen=True):
    """A page of a list, or a bookmark: the revision up to which a watch has sent every change."""

    metadata: _Metadata
    items: list[msgspec.Raw] | None = None


class _Version(msgspec.Struct, frozen=True):
    major: str = ""
    minor: str = ""  # some providers add a character: 32+


_line = msgspec.json.Decoder(_Line)
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


class _Position(msgspec.Struct):
    """Where a watch is: it has every change up to `revision`, 0 until all objects were listed."""

    revision: int = 0
    requests: int = 0


class KubeWatch:
    """Watches the objects of one kind that its namespace, its labels and its name select.

    *path* returns the path of the objects; *forget* is called if the server no longer serves it.
    Each request ends after a random part of *timeout_s*, and is replaced if no byte arrives for
    that long. A list shows one revision, and every write made before it began.
    """

    def __init__(
        self,
        transport: Transport,
        kind: KubeKind[Any],
        decoder: ObjectDecoder,
        incarnation: Incarnation,
        *,
        path: Callable[[], Awaitable[str]],
        forget: Callable[[], None],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._transport = transport
        self._forget = forget
        self._name = kind.name
        self._path = path
        self._decoder = decoder
        self._incarnation = incarnation
        self._timeout_s = timeout_s
        self._rejected = False  # whether the server rejected a list within a watch
        self._named: dict[str, str] = {}  # the query parameters that select the objects by name
        if kind.object_name is not None:
            self._named = {"fieldSelector": f"metadata.name={kind.object_name}"}
        self._selection = dict(self._named)
        if kind.selector.requirements:
            self._selection["labelSelector"] = str(kind.selector)

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
        at = _Position()
        try:
            for phase in (self._list(path, at), self._follow(path, at)):
                async with aclosing(phase) as events:
                    async for event in events:
                        yield event
        except KindMissingError:
            self._forget()
            raise

    async def _list(self, path: str, at: _Position) -> Events:
        """Yield the existing objects; list within a watch if the server supports that.

        If such a list fails for any reason that a list in pages may not have, list in pages.
        """
        if not self._rejected and await self._streams_lists():
            yield Listing(str(self._incarnation))
            failure: StoreError = WatchBrokenError("the watch ended before the list was complete")
            try:
                async with aclosing(self._stream(path, at)) as events:
                    async for event in events:
                        yield event
            except StoreError as error:
                if isinstance(error, _FINAL if at.revision else _DENIED):
                    raise
                failure = error
            if at.revision:
                return
            # after status 400, never again: the server does not know the parameters
            self._rejected = isinstance(failure, InvalidObjectError)
            log.info("listing in pages instead of a watch", kind=self._name, error=failure)
        async with aclosing(self._pages(path, at)) as events:
            async for event in events:
                yield event

    async def _follow(self, path: str, at: _Position) -> Events:
        clock = asyncio.get_running_loop().time
        tries = 1 if at.requests else 0
        while True:
            failure: StoreError | None = None
            started = math.inf
            try:
                if tries:
                    await self._check_newest(path, at.revision)
                started = clock()
                async with aclosing(self._stream(path, at)) as events:
                    async for event in events:
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

    async def _stream(self, path: str, at: _Position) -> Events:
        """Send one request; yield every change after the position, or the existing objects first.

        Raises `ExpiredError` if the server no longer has all changes or was restored from a backup,
        and `WatchBrokenError` if the connection breaks or is silent for too long.
        """
        at.requests += 1
        timeout_s = self._timeout_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter only
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(timeout_s))),
            **self._selection,
            **({"resourceVersion": str(at.revision)} if at.revision else _EVERYTHING),
        }
        async with self._transport.stream(
            path, query=query, accept=self._decoder.accept, silence_s=timeout_s + GRACE_S
        ) as lines:
            async for line in lines:
                event = self._event(line, at)
                if event is not None:
                    yield event

    def _event(self, text: bytes, at: _Position) -> WatchEvent | None:
        bookmark: _Page | None = None
        try:
            line = _line.decode(text)
            if line.type == "BOOKMARK":
                bookmark = _page.decode(line.object)
        except DECODE_ERRORS as error:
            raise WatchBrokenError(f"invalid line of a watch: {error}") from error
        if bookmark is not None:
            revision, listed = revision_of(bookmark.metadata.resource_version), at.revision > 0
            if not listed and _INITIAL_END not in bookmark.metadata.annotations:
                return None
            at.revision = revision
            if listed:
                return None
            if self._incarnation.detect_restore(revision):
                raise ExpiredError(f"the server was restored from a backup of {self._name}")
            return Listed(revision)
        if line.type == "ERROR":
            status = read_status(0, bytes(line.object))
            # after any error, the watch may have missed changes
            raise ExpiredError(str(error_for(status, RequestInfo("continue the watch"))))
        stored = self._decoder.sent(bytes(line.object))
        self._incarnation.saw(stored.revision)
        if at.revision:
            at.revision = stored.revision
        return Deleted(stored.key, stored.revision) if line.type == "DELETED" else Applied(stored)

    async def _pages(self, path: str, at: _Position) -> Events:
        """Yield the objects of one revision; if a page has expired, list again without pages."""
        limit, after, revision = {"limit": str(PAGE)}, "", 0
        while True:
            more = {"continue": after} if after else {}
            try:
                query = {**self._selection, **limit, **more}
                page = await self._page(path, query, LIST_S, revision=revision)
            except ExpiredError:
                if not limit:
                    raise
                limit, after, revision = {}, "", 0
                continue
            if not after:
                revision = revision_of(page.metadata.resource_version)
                self._incarnation.detect_restore(revision)
                yield Listing(str(self._incarnation))
            for item in page.items or ():
                yield Applied(self._decoder.stored(item))
            after = page.metadata.next_page
            if not after:
                break
        at.revision = revision
        yield Listed(revision)

    async def _page(
        self, path: str, query: dict[str, str], timeout_s: float, *, revision: int = 0
    ) -> _Page:
        reply = await self._transport.call(
            "GET", path, query=query, accept=self._decoder.accept_list, timeout_s=timeout_s
        )
        try:
            page = _page.decode(reply.body)
        except DECODE_ERRORS as error:
            raise StoreError(f"GET {path} returned an invalid list: {error}") from error
        if revision and revision_of(page.metadata.resource_version) != revision:
            raise ExpiredError(f"the pages of {path} have different revisions")
        return page

    async def _check_newest(self, path: str, revision: int) -> None:
        """Raise `ExpiredError` if the server is behind *revision*; it would send no changes.

        The request has no label selector, because an old server would search all objects for a
        match. It has the name, because a Role may permit only that name.
        """
        page = await self._page(path, {"limit": "1", **self._named}, NEWEST_S)
        newest = revision_of(page.metadata.resource_version)
        if newest < revision:
            raise ExpiredError(
                f"the server is at revision {newest} of {self._name}, but {revision} was seen "
                "before: the server was restored from a backup"
            )

    async def _streams_lists(self) -> bool:
        try:
            reply = await self._transport.call("GET", "/version")
            version = msgspec.json.decode(reply.body, type=_Version)
        except (StoreError, *DECODE_ERRORS):
            return False  # every server can list in pages
        major, minor = (_DIGITS.match(part) for part in (version.major, version.minor))
        if major is None or minor is None:
            return False
        return (int(major[0]), int(minor[0])) >= STREAMING_LISTS
