"""What store and watch need of a connection to a kube-apiserver."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What the server answered: a status of 2xx, the body, and when, as HTTP says it."""

    status: int
    body: bytes
    date: str = ""


class Wire(Protocol):
    """Carries requests and answers; `Transport` is one. Every call raises a `StoreError`."""

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
        """Ask once, or again where the request is *safe* to repeat; the answer is a success."""
        ...

    def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str],
        accept: str = "application/json",
        silence_s: float,
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Give the lines of an answer as they come, until the server ends it.

        Raises `WatchBrokenError` where the connection breaks, or is silent for *silence_s*.
        """
        ...
