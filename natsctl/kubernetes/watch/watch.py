"""Watches a kind without losing a change: a full list, then every change, or an error.

A kube-apiserver sends every change after a revision, or reports that it no longer has all of them.
When a request ends, the next one resumes at the last revision. If the server cannot resume, the
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
from natsctl.kubernetes.http.api_errors import ExpiredError
from natsctl.kubernetes.http.wire import Wire
from natsctl.kubernetes.resources.codec import ObjectDecoder
from natsctl.kubernetes.watch.listing import PAGE, Incarnation, Lister
from natsctl.kubernetes.watch.stream import TIMEOUT_S, Streams
from natsctl.model.manifests import KubeKind
from natsctl.model.store import Applied, Deleted, Listed, Listing, WatchEvent
from natsctl.telemetry.logger import get_logger

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
