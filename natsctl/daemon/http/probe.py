"""Probes a process over HTTP, for `natsctl health`.

The client is a few lines on a socket instead of aiohttp: a container may run `natsctl health` every
few seconds, and importing aiohttp takes longer than the probe.
"""

import asyncio
from http import HTTPStatus

import msgspec

from natsctl.daemon.settings.address import Address
from natsctl.errors import NoDaemonError

ANSWER_S = 5.0  # the deadline of a probe
ANSWER_MAX = 1_048_576  # bytes of a response that are read


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
            response = await _exchange(opened, path)
    except TimeoutError:
        raise NoDaemonError(f"{address} does not respond within {answer_s:g} s") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise NoDaemonError(
            f"cannot connect to {address}: {reason}; start the daemon with --listen {address}"
        ) from error
    return _parsed(response, address)


async def _exchange(opened: tuple[asyncio.StreamReader, asyncio.StreamWriter], path: str) -> str:
    reader, writer = opened
    try:
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        response = bytearray()
        while len(response) < ANSWER_MAX and (chunk := await reader.read(ANSWER_MAX)):
            response += chunk
        return response.decode("utf-8", "replace")
    finally:
        writer.transport.abort()


def _parsed(response: str, address: Address) -> ProbeResponse:
    head, _, text = response.partition("\r\n\r\n")
    match head.split(maxsplit=2):
        case [protocol, status, *_] if protocol.startswith("HTTP/") and status.isdigit():
            return ProbeResponse(int(status) == HTTPStatus.OK, text)
        case _:
            raise NoDaemonError(f"the process at {address} is not natsctl: it does not speak HTTP")
