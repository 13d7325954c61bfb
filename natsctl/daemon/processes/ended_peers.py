"""Gives the keys of processes of the same supervisor that have ended to the other members at once.

A supervisor knows when a process has ended, and sends its name to the others. One of them writes
into the member record of that process that it left. Otherwise the keys would wait until the member
must be dead.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress

import msgspec

from natsctl.core.coordination.sharding import Shard
from natsctl.core.task_group import together
from natsctl.daemon.processes.child_options import PeerEnded
from natsctl.errors import DECODE_ERRORS
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)


class EndedPeers:
    """The processes that have ended, as the supervisor reports them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._identities = asyncio.Queue[str]()

    def receive(self, line: bytes) -> None:
        """Take over a message of the supervisor; may be called in any thread."""
        try:
            message = msgspec.json.decode(line, type=PeerEnded)
        except DECODE_ERRORS:
            log.warning("invalid message of the supervisor")
            return
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._identities.put_nowait, message.identity)

    async def withdraw(self, shards: Collection[Shard]) -> None:
        """Withdraw the records of the processes that have ended; runs until it is cancelled."""
        while True:
            identity = await self._identities.get()
            async with together() as group:
                for shard in shards:
                    group.create_task(shard.withdraw(identity), name="withdrawal of a member")
