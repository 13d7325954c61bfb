"""Where the lines end in a stream that comes in pieces."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

import aiohttp

from natsctl.errors import WatchBrokenError
from natsctl.kubernetes.http.connection_errors import explained
from natsctl.kubernetes.http.request import Asked


class Lines:
    """Splits pieces into lines; takes no line longer than *line_max_bytes*."""

    def __init__(self, *, line_max_bytes: int) -> None:
        self._line_max_bytes = line_max_bytes
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the lines that this piece completes, without their ends; empty ones are left out.

        Raises `WatchBrokenError` for a line that is too long.
        """
        first, *others = piece.split(b"\n")
        self._rest.append(first)
        self._size += len(first)
        self._check()
        if not others:
            return []
        *lines, rest = b"".join(self._rest), *others
        self._rest, self._size = [rest], len(rest)
        return [line for line in lines if line]

    def end(self) -> None:
        """Raise `WatchBrokenError` where the stream ends within a line."""
        self._check()
        if self._size:
            raise WatchBrokenError("the stream ended in the middle of a line")

    def _check(self) -> None:
        if self._size > self._line_max_bytes:
            raise WatchBrokenError(f"a line is longer than {self._line_max_bytes} bytes")


class LineStream:
    """The lines of an answer, as they come.

    Iterating raises `WatchBrokenError` where it breaks, ends within a line or is silent for longer
    than *silence_s* seconds; however long its decoder takes, that is no silence.
    """

    def __init__(
        self, content: aiohttp.StreamReader, what: Asked, silence_s: float, line_max_bytes: int
    ) -> None:
        self._content = content
        self._what = what
        self._silence_s = silence_s
        self._lines = Lines(line_max_bytes=line_max_bytes)
        self._ready: deque[bytes] = deque()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._ready:
            piece = await self._next_piece()
            if not piece:
                self._lines.end()
                raise StopAsyncIteration
            self._ready.extend(self._lines.feed(piece))
        return self._ready.popleft()

    async def _next_piece(self) -> bytes:
        try:
            async with asyncio.timeout(self._silence_s):
                return await self._content.readany()
        except TimeoutError as error:
            raise WatchBrokenError(
                f"{self._what}: nothing came for {self._silence_s:g} s"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise WatchBrokenError(f"{self._what}: {explained(error).reason}") from error
