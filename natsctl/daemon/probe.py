"""The client of `natsctl health`: a few lines on a socket."""

import asyncio
from http import HTTPStatus

import msgspec

from natsctl.daemon.settings.settings import Address
from natsctl.errors import NoDaemonError

PROBE_S = 5.0  # the deadline of a probe
ANSWER_MAX = 1_048_576  # bytes of a response that are read


class ProbeResponse(msgspec.Struct, frozen=True):
    """The response to a probe: whether all checks passed, and a text that explains it."""

    passed: bool
    text: str


async def probe(address: Address, path: str, *, answer_s: float = PROBE_S) -> ProbeResponse:
    """Return the response at *address*; raises `NoDaemonError` if no natsctl responds in time."""
    response = bytearray()
    try:
        async with asyncio.timeout(answer_s):
            reader, writer = await asyncio.open_connection(*msgspec.structs.astuple(address.nearby))
            try:
                writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
                while len(response) < ANSWER_MAX and (chunk := await reader.read(ANSWER_MAX)):
                    response += chunk
            finally:
                writer.transport.abort()
    except TimeoutError:
        raise NoDaemonError(f"{address} does not respond within {answer_s:g} s") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise NoDaemonError(
            f"cannot connect to {address}: {reason}; start the daemon with --listen {address}"
        ) from error
    head, _, text = response.decode("utf-8", "replace").partition("\r\n\r\n")
    match head.split(maxsplit=2):
        case [protocol, status, *_] if protocol.startswith("HTTP/") and status.isdigit():
            return ProbeResponse(int(status) == HTTPStatus.OK, text)
        case _:
            raise NoDaemonError(f"the process at {address} is not natsctl: it does not speak HTTP")
