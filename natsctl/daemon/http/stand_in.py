"""Answers for a process while its event loop is blocked: probes over HTTP, and people over NATS."""

import asyncio
import os
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from http import HTTPStatus

import msgspec

from natsctl.daemon.api.messages import ControllerStatus, Process, cut
from natsctl.daemon.api.service import identity_of
from natsctl.daemon.api.verbs import Verb
from natsctl.daemon.http.vitals import Check, Verdict
from natsctl.daemon.observe.watchdog import Stall
from natsctl.errors import NatsctlError
from natsctl.jetstream.connection.connection import connect
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.service.server import Endpoint, serving
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

DEAD_S = 60.0  # a loop that is blocked for longer than this is not live
CHECK_S = 0.1
REQUEST_S = 0.5  # how long a client may take to send its request
REQUEST_MAX = 4096  # bytes of a request that are read
CONNECT_S = 1.0  # a stall that lasts so much longer is reported over NATS too


def http_stand_in(listeners: Sequence[socket.socket]) -> Callable[[Stall], None]:
    """Return what answers the connections to these listening sockets while the loop is blocked.

    `/livez` passes for `DEAD_S`, since the process is not dead, and names the key that blocks the
    loop. Everything else fails with the same reason.
    """

    def answer(stall: Stall) -> None:
        with ExitStack() as stack:
            own = [stack.enter_context(_duplicate(each)) for each in listeners]
            while not stall.over.is_set():
                for listener in select.select(own, (), (), CHECK_S)[0]:
                    with suppress(OSError):  # somebody else has taken it, or it is gone
                        connection, _ = listener.accept()
                        with connection:
                            _respond(connection, stall)

    return answer


def _duplicate(listener: socket.socket) -> socket.socket:
    duplicate = socket.socket(fileno=os.dup(listener.fileno()))
    duplicate.setblocking(False)
    return duplicate


def _respond(connection: socket.socket, stall: Stall) -> None:
    connection.settimeout(REQUEST_S)
    words = connection.recv(REQUEST_MAX).decode("latin-1").split(maxsplit=2)
    path = words[1].partition("?")[0] if len(words) > 1 else ""
    status, text = _answer(path.strip("/"), stall)
    body = text.encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nServer: natsctl\r\n"
        "Connection: close\r\n\r\n"
    )
    connection.sendall(head.encode() + (b"" if words[0] == "HEAD" else body))


def _answer(question: str, stall: Stall) -> tuple[HTTPStatus, str]:
    """Return the status and the text, in the form of `Verdict.text`."""
    if question == "livez" and stall.duration_s < DEAD_S:
        return HTTPStatus.OK, f"[+]event-loop ok: {stall}\nlivez check passed\n"
    verdict = Verdict(question, (Check("event-loop", str(stall)),))
    return HTTPStatus.SERVICE_UNAVAILABLE, verdict.text()


def nats_stand_in(
    options: NatsOptions, daemon: Process, controllers: Sequence[str]
) -> Callable[[Stall], None]:
    """Return what reports the status of these controllers over NATS while the loop is blocked.

    It has a connection of its own, for the time of a stall.
    """

    def answer(stall: Stall) -> None:
        if not stall.over.wait(CONNECT_S):
            try:
                asyncio.run(_report(stall))
            except NatsctlError as error:
                log.debug(
                    "cannot report status over NATS while the event loop is blocked", error=error
                )

    async def _report(stall: Stall) -> None:
        async with (
            connect(options) as connection,
            serving(connection, identity_of(daemon)) as service,
        ):
            service.offer([_endpoint(name, daemon, stall) for name in controllers])
            await asyncio.to_thread(stall.over.wait)

    return answer


def _endpoint(controller: str, daemon: Process, stall: Stall) -> Endpoint:
    async def status(_asked: bytes) -> bytes:
        failure = cut(f"event loop {stall}")
        return msgspec.json.encode(
            ControllerStatus(controller=controller, daemon=daemon, state="blocked", failure=failure)
        )

    return Endpoint(
        name=Verb.STATUS.value,
        subject=Verb.STATUS.subject(controller),
        handler=status,
        metadata={"controller": controller, "verb": Verb.STATUS.value},
    )
