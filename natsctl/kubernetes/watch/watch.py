"""A watch of a kind that loses nothing: a full listing, then every change, or a failure.

A kube-apiserver tells every change after a revision, or says that it does not know them all any
more. So a request that ends is followed by one that goes on at the revision reached; where the
server cannot do that, the watch breaks, and the next one lists anew.
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
from natsctl.kubernetes.resources.codec import ObjectDecoder, selection
from natsctl.kubernetes.watch.listing import PAGE, Incarnation, Lister
from natsctl.kubernetes.watch.stream import TIMEOUT_S, Streams
from natsctl.model.manifests import KubeKind
from natsctl.model.store import Applied, Deleted, Listed, Listing, WatchEvent

TRIES = 3  # quick ones to go on, one after the other, until the watch breaks
PAUSE_S = 0.1  # before the first of them, doubling
HEALTHY_S = 1.0  # a request that lived this long begins their count anew
STREAMING_LISTS = (1, 32)  # the first version that can list within a watch

_DIGITS = re.compile(r"\d+")
_FINAL = (  # what trying again soon does not change
    ExpiredError,
    InvalidObjectError,
    NotFoundError,
    PermissionDeniedError,
    StoreMissingError,
)

Events = AsyncGenerator[WatchEvent, None]


class KubeWatch:
    """Watches the objects of one kind: those of its namespace, its labels, or its one name.

    *path* says where they are. A request is ended after *timeout_s* at most, and replaced where
    nothing was heard for that long.
    """

    def __init__(
        self,
        wire: Wire,
        kind: KubeKind[Any],
        path: Callable[[], Awaitable[str]],
        incarnation: Incarnation,
        *,
        page: int = PAGE,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._wire = wire
        self._name = kind.name
        self._path = path
        self._decoder = ObjectDecoder(kind)
        self._selection = selection(kind)
        self._incarnation = incarnation
        self._timeout_s = timeout_s
        self._lister = Lister(wire, self._decoder, self._selection, incarnation, size=page)
        self._refused = False  # to list within a watch, by a server that should be able to

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Establish the watch; leaving the context closes its connection.

        The events end with `WatchBrokenError` where the server does not know all changes any
        more, or cannot be reached in a few tries; with `StoreMissingError` where it does not have
        the kind, `PermissionDeniedError` where we may not see it.
        """
        async with aclosing(self._events(await self._path())) as events:
            yield events

    async def _events(self, path: str) -> Events:
        streams = Streams(self._wire, self._decoder, self._selection, timeout_s=self._timeout_s)
        for part in (self._listed(path, streams), self._followed(path, streams)):
            async with aclosing(part) as events:
                async for event in events:
                    yield event

    async def _listed(self, path: str, streams: Streams) -> Events:
        """Tell what is there; within a watch, where the server can do that."""
        if not self._refused and await streams_lists(self._wire):
            try:
                async with aclosing(self._streamed(path, streams)) as events:
                    async for event in events:
                        yield event
            except InvalidObjectError:  # so it calls a request that it does not understand
                self._refused = True
            else:
                return
        async with aclosing(self._lister.events(path)) as events:
            async for event in events:
                if isinstance(event, Listed):
                    streams.revision = event.revision
                yield event

    async def _streamed(self, path: str, streams: Streams) -> Events:
        """Tell what is there, and what follows until the request ends."""
        yield Listing(str(self._incarnation))
        try:
            async with aclosing(streams.events(path)) as events:
                async for event in events:
                    self._reached(event)
                    yield event
        except _FINAL:
            raise
        except StoreError:
            if not streams.revision:
                raise
        if not streams.revision:
            raise WatchBrokenError(f"a watch of {self._name} ended before all was listed")

    async def _followed(self, path: str, streams: Streams) -> Events:
        """Tell what follows; where a request ends or breaks, go on from there."""
        clock = asyncio.get_running_loop().time
        tries = 1 if streams.requests else 0
        while True:
            failure: StoreError | None = None
            started = math.inf
            try:
                if tries:
                    await self._check(path, streams.revision)
                started = clock()
                async with aclosing(streams.events(path)) as events:
                    async for event in events:
                        self._reached(event)
                        yield event
            except _FINAL:
                raise
            except StoreError as error:
                failure = error
            tries = 1 if clock() - started > HEALTHY_S else tries + 1
            if tries > TRIES:
                reason = failure or "the server ends it"
                raise WatchBrokenError(f"no watch of {self._name} lasts: {reason}") from failure
            await asyncio.sleep(PAUSE_S * 2 ** (tries - 1) * random.uniform(0.5, 1.0))  # noqa: S311 - jitter only

    async def _check(self, path: str, revision: int) -> None:
        """Make sure that the server is not behind *revision*: it would be silent until there."""
        newest = await self._lister.newest(path)
        if newest < revision:
            raise ExpiredError(
                f"the server is at revision {newest} of {self._name}, we have seen {revision}: "
                "it fell back to a backup"
            )

    def _reached(self, event: WatchEvent) -> None:
        match event:
            case Applied():
                self._incarnation.reached(event.stored.revision)
            case Deleted():
                self._incarnation.reached(event.revision)
            case Listed() if self._incarnation.fell_back(event.revision):
                raise ExpiredError(f"the server fell back to a backup of {self._name}")


class _Version(msgspec.Struct, frozen=True):
    major: str = ""
    minor: str = ""  # a provider may add to it: 32+


async def streams_lists(wire: Wire) -> bool:
    """Say whether the server's version is one that can list within a watch."""
    try:
        reply = await wire.call("GET", "/version")
        version = msgspec.json.decode(reply.body, type=_Version)
    except (StoreError, *DECODE_ERRORS):
        return False  # lists in pages are had everywhere
    major, minor = (_DIGITS.match(part) for part in (version.major, version.minor))
    if major is None or minor is None:
        return False
    return (int(major[0]), int(minor[0])) >= STREAMING_LISTS
