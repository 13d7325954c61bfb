"""Reads the lines of a response that arrives in chunks."""

from collections.abc import AsyncGenerator

import aiohttp

from natsctl.errors import WatchBrokenError
from natsctl.kubernetes.http.connection import HttpResponse
from natsctl.kubernetes.http.connection_errors import explain_failure
from natsctl.kubernetes.http.request import RequestInfo
from natsctl.time_limit import TimeLimit


class LineSplitter:
    """Splits chunks into lines. No line is longer than *line_max_bytes*."""

    def __init__(self, *, line_max_bytes: int) -> None:
        self._line_max_bytes = line_max_bytes
        self._partial: list[bytes] = []  # the beginning of a line that is not complete
        self._partial_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes, without line ends and without empty lines.

        Raises `WatchBrokenError` if a line is too long.
        """
        line_end, *later_lines = chunk.split(b"\n")
        self._partial.append(line_end)
        self._partial_bytes += len(line_end)
        self._check_length()
        if not later_lines:
            return []
        *lines, unfinished = b"".join(self._partial), *later_lines
        self._partial, self._partial_bytes = [unfinished], len(unfinished)
        return [line for line in lines if line]

    def end(self) -> None:
        """Raise `WatchBrokenError` if the stream ends in the middle of a line."""
        self._check_length()
        if self._partial_bytes:
            raise WatchBrokenError("the stream ended in the middle of a line")

    def _check_length(self) -> None:
        if self._partial_bytes > self._line_max_bytes:
            raise WatchBrokenError(f"a line is longer than {self._line_max_bytes} bytes")


async def read_lines(
    response: HttpResponse, request: RequestInfo, *, silence_s: float, line_max_bytes: int
) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a response until the server ends it.

    Raises `WatchBrokenError` if the connection breaks, if the stream ends in the middle of a line,
    if a line is too long, or if no byte arrives for *silence_s* seconds. Only time spent waiting
    for the server counts, however slow the consumer is.
    """
    splitter, silence = LineSplitter(line_max_bytes=line_max_bytes), TimeLimit(silence_s)
    while chunk := await _read_chunk(response, request, silence):
        for line in splitter.feed(chunk):
            yield line
    splitter.end()


async def _read_chunk(response: HttpResponse, request: RequestInfo, silence: TimeLimit) -> bytes:
    try:
        with silence:
            return await response.chunk()
    except TimeoutError as error:
        raise WatchBrokenError(f"{request}: nothing came for {silence.limit_s:g} s") from error
    except (aiohttp.ClientError, OSError) as error:
        raise WatchBrokenError(f"{request}: {explain_failure(error).reason}") from error
