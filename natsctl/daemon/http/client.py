"""Asking a process over HTTP how it is."""

import asyncio
from http import HTTPStatus

import msgspec

from natsctl.daemon.settings.address import Address
from natsctl.errors import NoDaemonError

ANSWER_S = 5.0  # how long asking may take, all in all
ANSWER_MAX = 1_048_576  # bytes of an answer that are read


class Answer(msgspec.Struct, frozen=True):
    """What was answered: whether all is well, and the lines that say so."""

    passed: bool
    text: str


async def ask(address: Address, path: str, *, answer_s: float = ANSWER_S) -> Answer:
    """Return what the process that listens at *address*, on this machine, says at *path*.

    Raises `NoDaemonError` where nobody answers within *answer_s* seconds, or does so with
    something else than HTTP.
    """
    try:
        async with asyncio.timeout(answer_s):
            said = await _exchange(address.nearby, f"GET {path} HTTP/1.0\r\n\r\n")
    except TimeoutError:
        raise NoDaemonError(f"{address} does not answer within {answer_s:g} s") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise NoDaemonError(
            f"nobody answers on {address}: {reason}; is a daemon told to listen there (--listen)?"
        ) from error
    return _answer(said, address)


async def _exchange(address: Address, request: str) -> str:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(request.encode())
        said = bytearray()
        while len(said) < ANSWER_MAX and (more := await reader.read(ANSWER_MAX)):
            said += more
        return said.decode("utf-8", "replace")
    finally:
        writer.transport.abort()


def _answer(said: str, address: Address) -> Answer:
    head, _, text = said.partition("\r\n\r\n")
    match head.split(maxsplit=2):
        case [protocol, status, *_] if protocol.startswith("HTTP/") and status.isdigit():
            return Answer(int(status) == HTTPStatus.OK, text)
        case _:
            raise NoDaemonError(f"who answers on {address} is no natsctl: it speaks no HTTP")
