"""Connects to the first server that answers."""

import asyncio
import random
from collections.abc import Callable

from natsctl.errors import ConnectError
from natsctl.jetstream.connection.connect_errors import Failure
from natsctl.jetstream.connection.credentials import arguments
from natsctl.jetstream.connection.link import Report, ServerLink, open_link
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.connection.servers import Servers

ATTEMPT_MIN_S = 1.0  # the least time for an attempt to connect to one of several servers
PAUSE_MIN_S = 0.1  # between two rounds over all servers; doubles up to `PAUSE_MAX_S`
PAUSE_MAX_S = 1.0


class Dial:
    """Tries the configured servers, and the cluster members that they announced, in turn.

    Links pass their background errors to *report*. *progress* gets a text after every failed
    round. The constructor raises `UsageError` if a URL or a file is malformed.
    """

    def __init__(
        self, options: NatsOptions, *, report: Report, progress: Callable[[str], None]
    ) -> None:
        self._options = options
        self._report = report
        self._progress = progress
        self._servers = Servers(options.urls)
        self._last: ServerLink | None = None
        for server in self._servers.round():
            arguments(options, server)

    def __str__(self) -> str:
        return str(self._servers)

    async def once(self) -> ServerLink:
        """Try every server once; raises `ConnectError` after `connect_timeout_s` at most."""
        limit_s = self._options.connect_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                outcome = await self._try_servers()
                await _end_if_cancelled(outcome)
        except TimeoutError:
            raise ConnectError(
                f"cannot connect to NATS: none of {self} answers within {limit_s:g} s"
            ) from None
        return _link(outcome)

    async def patiently(self, *, refusals_final: bool = False) -> ServerLink:
        """Try round after round until a server answers.

        Raises `ConnectError` if *refusals_final* and a server rejects this client.
        """
        pause_s = PAUSE_MIN_S
        while True:
            outcome = await self._try_servers()
            await _end_if_cancelled(outcome)
            if isinstance(outcome, ServerLink) or (
                refusals_final and any(failure.final for failure in outcome)
            ):
                return _link(outcome)
            self._progress("; ".join(map(str, outcome)))
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter only
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _try_servers(self) -> ServerLink | list[Failure]:
        if self._last is not None:  # the members that the last server announced
            self._servers.announce(self._last.client.discovered_servers, self._last.server)
        servers = self._servers.round()
        limit_s = max(ATTEMPT_MIN_S, self._options.connect_timeout_s / len(servers))
        failures: list[Failure] = []
        for server in servers:
            outcome = await open_link(server, self._options, self._report, limit_s=limit_s)
            if isinstance(outcome, ServerLink):
                self._last = outcome
                return outcome
            self._servers.failed(server)
            failures.append(outcome)
        return failures


def _link(outcome: ServerLink | list[Failure]) -> ServerLink:
    if isinstance(outcome, ServerLink):
        return outcome
    reasons = "; ".join(map(str, outcome))
    raise ConnectError(f"cannot connect to NATS: {reasons}") from outcome[-1].error


async def _end_if_cancelled(outcome: ServerLink | list[Failure]) -> None:
    """Raise a cancellation that arrived in the moment in which an attempt ended.

    Python 3.11's `asyncio.wait_for`, which nats-py uses to connect, loses such a cancellation.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        if isinstance(outcome, ServerLink):
            await outcome.end()
        raise asyncio.CancelledError
