"""What one watch request says, from its beginning until the server ends it."""

import random
from collections.abc import AsyncGenerator, Mapping

import msgspec

from natsctl.errors import DECODE_ERRORS, WatchBrokenError
from natsctl.kubernetes.http.api_errors import ExpiredError, error_for, read_status
from natsctl.kubernetes.http.request import RequestInfo
from natsctl.kubernetes.http.wire import Wire
from natsctl.kubernetes.resources.codec import Bookmark, Frame, ObjectDecoder, revision_of
from natsctl.model.store import Applied, Deleted, Listed, WatchEvent

TIMEOUT_S = 60.0  # the longest that a server is asked to keep a watch open
GRACE_S = 5.0  # how much later than asked a server may end it

_INITIAL_END = "k8s.io/initial-events-end"
_EVERYTHING = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}

_frame = msgspec.json.Decoder(Frame)
_bookmark = msgspec.json.Decoder(Bookmark)


class Streams:
    """Follows the objects that *selection* means, one watch request at a time.

    `revision` is how far the `requests` have come, 0 until everything there is was told: the next
    one goes on there. Each ends after *timeout_s* at most, a little earlier every time.
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
        """Tell every change after `revision`; before there is one, first what is there.

        Raises `ExpiredError` where the server does not know them all any more, and
        `WatchBrokenError` where the connection breaks or is silent for too long.
        """
        self.requests += 1
        start = {"resourceVersion": str(self.revision)} if self.revision else _EVERYTHING
        timeout_s = self._timeout_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, keeps no secret
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
                return self._marked(_bookmark.decode(frame.object))
        except DECODE_ERRORS as error:
            raise WatchBrokenError(f"a line of a watch makes no sense: {error}") from error
        if frame.type == "ERROR":
            status = read_status(0, bytes(frame.object))
            # whatever it is, we cannot know what is missing from here on
            raise ExpiredError(str(error_for(status, RequestInfo("continue the watch"))))
        stored = self._decoder.stored(frame.object)
        if self.revision:
            self.revision = stored.revision
        if frame.type == "DELETED":
            return Deleted(stored.key, stored.revision)
        return Applied(stored)

    def _marked(self, bookmark: Bookmark) -> Listed | None:
        """Note how far we are; the first mark of a watch that began with everything ends that."""
        revision = revision_of(bookmark.metadata.resource_version)
        if self.revision:
            self.revision = revision
        elif _INITIAL_END in bookmark.metadata.annotations:
            self.revision = revision
            return Listed(revision)
        return None
