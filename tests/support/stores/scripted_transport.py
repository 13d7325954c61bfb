"""A `Transport` that replays the responses and the watch lines that a test prepares."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from natsctl.errors import StoreError
from natsctl.kubernetes.transport import Reply, Transport

OLD, NEW = "20", "32+"  # minor versions, without and with lists within watches


class Request(NamedTuple):
    """A received request."""

    method: str
    path: str
    query: dict[str, str]


class ScriptedWire(Transport):
    """A wire that returns the next of `replies` for a call and of `streams` for a stream.

    An exception among them is raised. A stream ends after its last line, unless that line is
    `SILENCE`: then it stays open. A list with limit 1 has revision `newest` and is recorded in
    `looks`. `minor` is the minor version that the server reports.
    """

    SILENCE = b"..."

    def __init__(self, *, minor: str = OLD) -> None:
        self.replies: deque[object] = deque()
        self.streams: deque[list[object]] = deque()
        self.calls: list[Request] = []
        self.looks: list[Request] = []
        self.watches: list[Request] = []
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
        **_how: Any,
    ) -> Reply:
        if path == "/version":
            return _reply({"major": "1", "minor": self._minor})
        if query is not None and query.get("limit") == "1":
            self.looks.append(Request(method, path, dict(query)))
            return _reply(page(self.newest))
        self.calls.append(Request(method, path, dict(query or {})))
        response = self.replies.popleft()
        if isinstance(response, StoreError):
            raise response
        return _reply(response)

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], accept: str = "", silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self.watches.append(Request("WATCH", path, dict(query)))
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


def _reply(response: object) -> Reply:
    return Reply(200, msgspec.json.encode(response))


def thing(name: str, revision: int, **more_fields: Any) -> dict[str, Any]:
    """Return an object as the server sends it."""
    managed = [{"manager": "people", "operation": "Update"}]
    metadata = {
        "name": name,
        "namespace": "team-a",
        "resourceVersion": str(revision),
        "managedFields": managed,
    }
    return {"metadata": metadata, **more_fields}


def page(revision: int, *items: object, after: str = "") -> dict[str, Any]:
    """Return a page of a list; `after` is the continue token."""
    metadata = {"resourceVersion": str(revision), **({"continue": after} if after else {})}
    return {"kind": "ThingList", "apiVersion": "v1", "metadata": metadata, "items": items}


def line(type: str, obj: object) -> dict[str, object]:  # noqa: A002 - the name of the field
    """Return a line of a watch."""
    return {"type": type, "object": obj}


def bookmark(revision: int, *, initial_end: bool = False) -> dict[str, object]:
    """Return a bookmark line with a revision."""
    metadata: dict[str, object] = {"resourceVersion": str(revision)}
    if initial_end:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    return line("BOOKMARK", {"metadata": metadata})


def refusal(code: int, reason: str) -> dict[str, object]:
    """Return the error line with which the server ends a watch."""
    return line("ERROR", {"kind": "Status", "code": code, "reason": reason, "message": reason})
