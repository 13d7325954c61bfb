"""Decodes the events of one watch request."""

import random
from collections.abc import AsyncGenerator, Mapping

import msgspec

from natsctl.errors import DECODE_ERRORS, WatchBrokenError
from natsctl.kubernetes.http.api_errors import ExpiredError, error_for, read_status
from natsctl.kubernetes.http.request import RequestInfo
from natsctl.kubernetes.http.wire import Wire
from natsctl.kubernetes.resources.codec import ObjectDecoder, revision_of
from natsctl.model.store import Applied, Deleted, Listed, WatchEvent

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
