"""Decodes the events of one watch request."""

import random
from collections.abc import AsyncGenerator, Mapping

import msgspec

from natsctl.errors import DECODE_ERRORS, WatchBrokenError
from natsctl.kubernetes.http.api_errors import ExpiredError, error_for, read_status
from natsctl.kubernetes.http.request import RequestInfo
from natsctl.kubernetes.http.wire import Wire
from natsctl.kubernetes.resources.codec import Bookmark, Frame, ObjectDecoder, revision_of
from natsctl.model.store import Applied, Deleted, Listed, WatchEvent

TIMEOUT_S = 60.0  # the longest duration of a watch request
GRACE_S = 5.0  # for a server that ends a request later than requested

_INITIAL_END = "k8s.io/initial-events-end"
_EVERYTHING = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}

_frame = msgspec.json.Decoder(Frame)
_bookmark = msgspec.json.Decoder(Bookmark)


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

    def _event(self, line: bytes) -> WatchEvent | None:
        try:
            frame = _frame.decode(line)
            if frame.type == "BOOKMARK":
                return self._bookmarked(_bookmark.decode(frame.object))
        except DECODE_ERRORS as error:
            raise WatchBrokenError(f"invalid line of a watch: {error}") from error
        if frame.type == "ERROR":
            status = read_status(0, bytes(frame.object))
            # after any error, changes may be missing
            raise ExpiredError(str(error_for(status, RequestInfo("continue the watch"))))
        stored = self._decoder.stored(frame.object)
        if self.revision:
            self.revision = stored.revision
        if frame.type == "DELETED":
            return Deleted(stored.key, stored.revision)
        return Applied(stored)

    def _bookmarked(self, bookmark: Bookmark) -> Listed | None:
        """Update `revision`; return `Listed` if the bookmark ends the initial objects."""
        revision = revision_of(bookmark.metadata.resource_version)
        if self.revision:
            self.revision = revision
        elif _INITIAL_END in bookmark.metadata.annotations:
            self.revision = revision
            return Listed(revision)
        return None
