"""Reports the status of controllers over NATS while the event loop is blocked."""

import asyncio
from collections.abc import Sequence

import msgspec

from natsctl.daemon.api.messages import ControllerStatus, DaemonProcess, cut
from natsctl.daemon.api.service import identity_of
from natsctl.daemon.api.verbs import Verb
from natsctl.daemon.observe.watchdog import Stall, StandIn
from natsctl.errors import NatsctlError
from natsctl.jetstream.connection.connection import connect
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.service.server import Endpoint, serving
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

CONNECT_S = 1.0  # a stall that lasts this much longer is reported over NATS too


def status_stand_in(
    options: NatsOptions, daemon: DaemonProcess, controllers: Sequence[str]
) -> StandIn:
    """Return a stand-in that answers `status` requests for these controllers.

    The stand-in opens a connection for the duration of a stall.
    """

    def answer(stall: Stall) -> None:
        if not stall.over.wait(CONNECT_S):
            try:
                asyncio.run(serve(stall))
            except NatsctlError as error:
                log.debug("cannot report status over NATS while blocked", error=error)

    async def serve(stall: Stall) -> None:
        async with (
            connect(options) as connection,
            serving(connection, identity_of(daemon)) as service,
        ):
            service.offer([_status_endpoint(name, daemon, stall) for name in controllers])
            await asyncio.to_thread(stall.over.wait)

    return answer


def _status_endpoint(controller: str, daemon: DaemonProcess, stall: Stall) -> Endpoint:
    async def status(_request: bytes) -> bytes:
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
