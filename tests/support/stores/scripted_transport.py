"""A kube-apiserver that says what a test has written down for it; a `Wire`."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from natsctl.errors import StoreError
from natsctl.kubernetes.http.wire import Reply

OLD, NEW = "20", "32+"  # minor versions, without and with lists within watches


class Asked(NamedTuple):
    """A request, as it came."""

    method: str
    path: str
    query: dict[str, str]


class ScriptedWire:
    """Answers `replies` to calls and `streams` to streams, each in its turn.

    An exception among them is raised. A stream ends after its last line, unless that is
    `SILENCE`. It is at revision `newest`, in lists of a single object, and of the version given.
    """

    SILENCE = b"..."

    def __init__(self, *, minor: str = OLD) -> None:
        self.replies: deque[object] = deque()
        self.streams: deque[list[object]] = deque()
        self.calls: list[Asked] = []
        self.looks: list[Asked] = []
        self.watches: list[Asked] = []
        self.silences: list[float] = []
        self.open = 0
        self.newest = 1_000_000
        self._minor = minor

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        **_how: object,
    ) -> Reply:
        if path == "/version":
            return _reply({"major": "1", "minor": self._minor})
        if query is not None and query.get("limit") == "1":
            self.looks.append(Asked(method, path, dict(query)))
            return _reply(page(self.newest))
        self.calls.append(Asked(method, path, dict(query or {})))
        answer = self.replies.popleft()
        if isinstance(answer, StoreError):
            raise answer
        return _reply(answer)

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], accept: str = "", silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self.watches.append(Asked("WATCH", path, dict(query)))
        self.silences.append(silence_s)
        lines = self.streams.popleft()
        if lines and isinstance(lines[0], StoreError):
            raise lines[0]
        self.open += 1
        try:
            yield self._lines(lines)
        finally:
            self.open -= 1

    async def _lines(self, lines: list[object]) -> AsyncIterator[bytes]:
        for line in lines:
            await asyncio.sleep(0)
            if isinstance(line, StoreError):
                raise line
            if line == self.SILENCE:
                await asyncio.Event().wait()
            yield line if isinstance(line, bytes) else msgspec.json.encode(line)


def _reply(answer: object) -> Reply:
    return Reply(200, msgspec.json.encode(answer))


def thing(name: str, revision: int, **more: Any) -> dict[str, Any]:
    """Return an object as a server sends it."""
    managed = [{"manager": "people", "operation": "Update"}]
    metadata = {
        "name": name,
        "namespace": "team-a",
        "resourceVersion": str(revision),
        "managedFields": managed,
    }
    return {"metadata": metadata, **more}


def page(revision: int, *items: object, after: str = "") -> dict[str, Any]:
    """Return a page of a list; *after* names the next one."""
    metadata = {"resourceVersion": str(revision), **({"continue": after} if after else {})}
    return {"kind": "ThingList", "apiVersion": "v1", "metadata": metadata, "items": items}


def line(type: str, of: object) -> dict[str, object]:  # noqa: A002 - the field's word
    """Return a line of a watch."""
    return {"type": type, "object": of}


def bookmark(revision: int, *, initial_end: bool = False) -> dict[str, object]:
    """Return a line that says how far the watch has come."""
    metadata: dict[str, object] = {"resourceVersion": str(revision)}
    if initial_end:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    return line("BOOKMARK", {"metadata": metadata})


def refusal(code: int, reason: str) -> dict[str, object]:
    """Return the line with which a server gives a watch up."""
    return line("ERROR", {"kind": "Status", "code": code, "reason": reason, "message": reason})
