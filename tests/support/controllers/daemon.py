"""Runs controllers with a NATS service in this process, as a daemon does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from natsctl import Controller
from natsctl.core.recording.recordings import Recordings, recording
from natsctl.core.task_group import together
from natsctl.daemon.api.service import answering
from natsctl.daemon.operator import Operator
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.jetstream.stores import Nats
from tests.support.eventually import eventually


@asynccontextmanager
async def daemon_on(
    nats: Nats, *controllers: Controller, dry_run: bool = False
) -> AsyncIterator[None]:
    """Run the controllers until the context ends; *dry_run* is what the service reports."""
    settings = ControllerSettings(stop_timeout_s=2)
    operator = Operator(list(controllers), nats=nats, settings=settings)
    async with (
        answering(nats.connection, operator.runtimes, dry_run=dry_run),
        together() as group,
    ):
        with recording(Recordings()):
            task = group.create_task(operator.run())
        await eventually(operator.synced.is_set)
        try:
            yield
        finally:
            operator.stop()
            await asyncio.wait((task,))
