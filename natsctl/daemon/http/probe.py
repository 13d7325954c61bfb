"""Probes a process over HTTP, for `natsctl health` and for the supervisor of processes.

The client is a few lines on a socket instead of aiohttp: a container may run `natsctl health` every
few seconds, and importing aiohttp takes longer than the probe.
"""

import asyncio
from http import HTTPStatus
from pathlib import Path

import msgspec

from natsctl.daemon.settings.address import Address
from natsctl.errors import NoDaemonError

ANSWER_S = 5.0  # the deadline of a probe
ANSWER_MAX = 1_048_576  # bytes of a response that are read
PAGE_MAX = 16 * 1_048_576  # bytes of a page of metrics that are read


class ProbeResponse(msgspec.Struct, frozen=True):
    """The response to a probe: whether all checks passed, and a text that explains it."""

    passed: bool
    text: str


async def probe(address: Address, path: str, *, answer_s: float = ANSWER_S) -> ProbeResponse:
    """Return the response of the process that listens at *address* on this machine.

    Raises `NoDaemonError` if no process responds within *answer_s* seconds, or if the response is
    not HTTP.
    """
    try:
        async with asyncio.timeout(answer_s):
            nearby = address.nearby
            opened = await asyncio.open_connection(nearby.host, nearby.port)
            response = await _exchange(opened, path, ANSWER_MAX)
    except TimeoutError:
        raise NoDaemonError(f"{address} does not respond within {answer_s:g} s") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise NoDaemonError(
            f"cannot connect to {address}: {reason}; start the daemon with --listen {address}"
        ) from error
    return _parsed(response, address)


async def read_page(socket: Path, path: str, *, answer_s: float = ANSWER_S) -> ProbeResponse:
    """Return the response of the process that listens at the Unix *socket*.

    Raises `NoDaemonError` as `probe` does.
    """
    try:
        async with asyncio.timeout(answer_s):
            opened = await asyncio.open_unix_connection(socket)
            response = await _exchange(opened, path, PAGE_MAX)
    except TimeoutError:
        raise NoDaemonError(f"it does not respond within {answer_s:g} s") from None
    except OSError as error:
        raise NoDaemonError(f"it does not respond: {error.strerror or error}") from error
    return _parsed(response, socket)


async def _exchange(
    opened: tuple[asyncio.StreamReader, asyncio.StreamWriter], path: str, limit: int
) -> str:
    reader, writer = opened
    try:
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        response = bytearray()
        while len(response) < limit and (chunk := await reader.read(limit)):
            response += chunk
        return response.decode("utf-8", "replace")
    finally:
        writer.transport.abort()


def _parsed(response: str, address: Address | Path) -> ProbeResponse:
    head, _, text = response.partition("\r\n\r\n")
    match head.split(maxsplit=2):
        case [protocol, status, *_] if protocol.startswith("HTTP/") and status.isdigit():
            return ProbeResponse(int(status) == HTTPStatus.OK, text)
        case _:
            raise NoDaemonError(f"the process at {address} is not natsctl: it does not speak HTTP")
