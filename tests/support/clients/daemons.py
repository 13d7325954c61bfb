"""Runs controllers as `natsctl run` does, and finds the daemons that answer requests."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from natsctl import Controller, Operator
from natsctl.core.task_group import together
from natsctl.daemon.client import Daemons
from natsctl.daemon.service import answering
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.errors import NatsctlError
from tests.support.clients.nats import Nats
from tests.support.eventually import eventually


@asynccontextmanager
async def running_operator(
    nats: Nats, controllers: Sequence[Controller]
) -> AsyncIterator[Operator]:
    """Run the controllers while the context lasts, and answer requests about them."""
    operator = Operator(controllers, nats=nats, settings=ControllerSettings(stop_timeout_s=2))
    async with answering(nats.connection, operator.runtimes), together() as group:
        running = group.create_task(operator.run())
        try:
            yield operator
        finally:
            operator.stop()
            await asyncio.wait((running,))


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
