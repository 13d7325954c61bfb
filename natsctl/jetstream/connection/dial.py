"""Getting a link to whichever server answers."""

import asyncio
import random
from collections.abc import Callable

from natsctl.errors import ConnectError
from natsctl.jetstream.connection.connect_errors import Failure
from natsctl.jetstream.connection.credentials import arguments
from natsctl.jetstream.connection.link import Link, Report, open_link
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.connection.servers import Servers

ATTEMPT_MIN_S = 1.0  # the least time that one of several servers has to answer
PAUSE_MIN_S = 0.1  # between two rounds of all servers, doubling
PAUSE_MAX_S = 1.0


class Dial:
    """Tries the servers that the options name, and those that they told us of, in turn.

    `report` is handed to the links; `progress` is told of every round that failed, in words.
    Making one raises `UsageError` where a URL or a file is wrong.
    """

    def __init__(
        self, options: NatsOptions, *, report: Report, progress: Callable[[str], None]
    ) -> None:
        self._options = options
        self._report = report
        self._progress = progress
        self._servers = Servers(options.urls)
        self._last: Link | None = None
        for server in self._servers.round():
            arguments(options, server)

    def __str__(self) -> str:
        return str(self._servers)

    async def once(self) -> Link:
        """Try every server once; raises `ConnectError` after `connect_timeout_s` at most."""
        limit_s = self._options.connect_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                found = await self._round()
                await _end_if_cancelled(found)
        except TimeoutError:
            raise ConnectError(
                f"cannot connect to NATS: none of {self} answers within {limit_s:g} s"
            ) from None
        return _link(found)

    async def patiently(self, *, refusals_final: bool = False) -> Link:
        """Try round after round until a server answers.

        With *refusals_final*, raises `ConnectError` where one refuses us instead.
        """
        pause_s = PAUSE_MIN_S
        while True:
            found = await self._round()
            await _end_if_cancelled(found)
            if isinstance(found, Link) or (refusals_final and any(f.final for f in found)):
                return _link(found)
            self._progress("; ".join(map(str, found)))
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter only
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _round(self) -> Link | list[Failure]:
        if self._last is not None:  # what it was told of its cluster, up to its end
            self._servers.told(self._last.client.discovered_servers, self._last.server)
        servers = self._servers.round()
        limit_s = max(ATTEMPT_MIN_S, self._options.connect_timeout_s / len(servers))
        failures: list[Failure] = []
        for server in servers:
            found = await open_link(server, self._options, self._report, limit_s=limit_s)
            if isinstance(found, Link):
                self._last = found
                return found
            self._servers.failed(server)
            failures.append(found)
        return failures


def _link(found: Link | list[Failure]) -> Link:
    if isinstance(found, Link):
        return found
    raise ConnectError(f"cannot connect to NATS: {'; '.join(map(str, found))}") from found[-1].error


async def _end_if_cancelled(found: Link | list[Failure]) -> None:
    """Be cancelled now, where that came in the moment in which an attempt ended.

    Python 3.11's `asyncio.wait_for`, through which nats-py connects, loses such a cancellation.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        if isinstance(found, Link):
            await found.end()
        raise asyncio.CancelledError
