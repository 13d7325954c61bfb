"""Ends the work of a controller within a time."""

import asyncio
import logging
from collections.abc import Collection

from natsctl.core.sync.calls import report_stuck
from natsctl.core.sync.time_limit import IGNORED_S

log = logging.getLogger(__name__)


async def finish(owner: str, tasks: "Collection[asyncio.Task[None]]", *, within_s: float) -> None:
    """Wait until the tasks have ended; cancel those that have not in time.

    The calls of handlers that go on after that are logged with their keys and stacks. They end
    with the process.
    """
    _, late = await asyncio.wait(tasks, timeout=within_s)
    for task in late:
        log.warning("%s: what is under way is cut short", owner)
        task.cancel()
    if late:
        _, stuck = await asyncio.wait(late, timeout=IGNORED_S)
        if stuck:
            report_stuck(owner)
