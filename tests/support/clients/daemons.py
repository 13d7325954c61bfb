"""Runs controllers as `natsctl run` does, and finds the daemons that answer requests."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from natsctl import Controller, Operator
from natsctl.core.environment import within
from natsctl.core.record.recordings import Recordings
from natsctl.core.task_group import together
from natsctl.daemon.client import Daemons
from natsctl.daemon.messages import NAME
from natsctl.daemon.service import answering
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.errors import NatsctlError, StoreError
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.service import ask_all, services
from tests.support.clients.nats import Nats
from tests.support.eventually import eventually


@asynccontextmanager
async def running_operator(
    nats: Nats, controllers: Sequence[Controller], *, dry_run: bool = False
) -> AsyncIterator[Operator]:
    """Run the controllers while the context lasts, and answer requests about them.

    *dry_run* is what the service reports.
    """
    operator = Operator(controllers, nats=nats, settings=ControllerSettings(stop_timeout_s=2))
    async with answering(nats.connection, operator.runtimes, dry_run=dry_run), together() as group:
        with within(recordings=Recordings()):
            running = group.create_task(operator.run())
        try:
            yield operator
        finally:
            operator.stop()
            await asyncio.wait((running,))


@asynccontextmanager
async def daemon_on(
    nats: Nats, *controllers: Controller, dry_run: bool = False
) -> AsyncIterator[None]:
    """Run the controllers in a context that begins when they're synced and answer."""
    async with running_operator(nats, controllers, dry_run=dry_run) as operator:
        await eventually(operator.synced.is_set)
        await eventually(lambda: are_served(nats.connection, 1))
        yield


async def are_served(connection: Connection, count: int) -> bool:
    """Return whether so many daemons answer; their endpoints are subscribed in order."""
    try:
        infos = await services(connection, NAME, timeout_s=2.0)
        if len(infos) < count or not all(info.endpoints for info in infos):
            return False
        last = max(endpoint.subject for info in infos for endpoint in info.endpoints)
        grouped = any(e.queue_group for info in infos for e in info.endpoints if e.subject == last)
        answers = await ask_all(connection, last, timeout_s=2.0)
    except StoreError:
        return False
    return len(answers) >= (1 if grouped else count)


async def find_daemons(nats: Nats) -> Daemons:
    """Wait until a daemon answers, and return the daemons."""

    async def look() -> Daemons | None:
        try:
            return await Daemons.find(nats.connection)
        except NatsctlError:
            return None

    daemons = await eventually(look)
    assert daemons is not None
    return daemons


async def ask(
    connection: Connection, subject: str, payload: bytes = b"", *, timeout_s: float
) -> bytes:
    """Return the first answer of a service; raises the error that it reports."""
    (answer,) = await ask_all(connection, subject, payload, expected=1, timeout_s=timeout_s)
    return answer.result()
