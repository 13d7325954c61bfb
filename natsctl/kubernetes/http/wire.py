"""The seam between Kubernetes objects and the HTTP connection to a kube-apiserver."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

MERGE_PATCH = "application/merge-patch+json"
READS = ("GET", "HEAD")


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A successful response: its 2xx status, its body, and its `Date` header."""

    status: int
    body: bytes
    date: str = ""


class Wire(Protocol):
    """Sends requests and returns responses. All errors are `StoreError`s.

    `Transport` is the implementation; tests have others.
    """

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        safe: bool | None = None,
        timeout_s: float | None = None,
    ) -> Reply:
        """Send a request, retry it if it is *safe* to repeat, and return the 2xx response."""
        ...

    def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str],
        accept: str = "application/json",
        silence_s: float,
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Send a GET request and yield the lines of its response until the server ends it.

        Raises `WatchBrokenError` if the connection breaks, or if no byte arrives for *silence_s*
        seconds.
        """
        ...
