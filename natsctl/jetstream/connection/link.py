"""One connection to one server, from connect to close."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from nats.errors import Error as NatsError
from nats.errors import NoServersError, SecureConnWantedError, UnexpectedEOF

from natsctl.jetstream.connection.client import OneTimeClient
from natsctl.jetstream.connection.connect_errors import Failure, ending, explained
from natsctl.jetstream.connection.credentials import arguments
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.connection.permissions import (
    PermissionViolation,
    may_not_subscribe,
    violation,
)
from natsctl.jetstream.connection.requests import Requests
from natsctl.jetstream.connection.servers import Server
from natsctl.time_limit import happens

PINGS = 2  # how many pings the server may leave unanswered
CHECKS = 12  # checks for received data within `silence_s`
CHECK_MAX_S = 0.25  # between two checks
END_S = 2.0  # the deadline of nats-py's close

Report = Callable[[Exception], None]


class ServerLink:
    """A connection to one server. A link never reconnects; a new link replaces it.

    `client` is the nats-py client and `requests` sends requests over it. *report* gets every
    background error of nats-py, except the one that ends the connection; it must not raise.
    """

    def __init__(self, server: Server, options: NatsOptions, report: Report) -> None:
        self.server = server
        self.client = OneTimeClient()
        self.requests = Requests(self.client)
        self._options = options
        self._report = report
        self._error: Exception | None = None
        self._lost = asyncio.Event()
        self._closed = asyncio.Event()
        self._established = False

    @property
    def alive(self) -> bool:
        """True if the connection is up, as far as the client knows."""
        return self.client.is_connected and not self._lost.is_set()

    @property
    def reason(self) -> str:
        """A short text that explains why the connection ended."""
        return ending(self._error or self.client.last_error)

    async def establish(self, limit_s: float) -> None:
        """Connect and subscribe to the inbox; raises any error of nats-py unchanged."""
        try:
            await self._connect(limit_s)
        except NoServersError as error:
            raise self._error or error from error
        if not self.client.is_connected:
            # nats-py raises nothing if the server closes the connection instead of answering
            raise self._error or UnexpectedEOF()
        await self.requests.start()
        self._established, self._error = True, None

    async def ended(self) -> None:
        """Wait until the connection is down."""
        check_s = min(CHECK_MAX_S, self._options.silence_s / CHECKS)
        while self.alive:
            self.client.count_traffic_as_pong()
            await happens(self._lost, within_s=check_s)

    async def flush(self, limit_s: float) -> None:
        """Wait until the server has received everything published, for at most *limit_s*."""
        if self.alive:
            with suppress(TimeoutError, NatsError):
                async with asyncio.timeout(limit_s):
                    await self.client.flush()

    async def end(self) -> None:
        """Abort the connection; no task of it runs after this returns."""
        self.client.abort()
        with suppress(TimeoutError, NatsError, OSError):
            async with asyncio.timeout(END_S):
                if not self.client.is_closed:
                    await self.client.close()
                elif self._established:
                    await self._closed.wait()  # the client is closing

    async def _connect(self, limit_s: float) -> None:
        settings = arguments(self._options, self.server)
        if "tls" in settings:
            for secret in ("password", "token"):
                if settings.get(secret) is not None:
                    settings[secret] = self._over_tls(settings[secret])
        ping_s = self._options.silence_s / (PINGS + 1)
        await self.client.connect(
            servers=[self.server.address],
            error_cb=self._on_error,
            closed_cb=self._on_closed,
            name=self._options.name,
            inbox_prefix=self._options.inbox_prefix,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=limit_s,  # type: ignore[arg-type]  # takes any number
            ping_interval=ping_s,  # type: ignore[arg-type]  # takes any number
            max_outstanding_pings=PINGS,
            pending_size=0,
            **settings,
        )
        if "tls" in settings:
            self._over_tls("")()

    def _over_tls(self, secret: str) -> Callable[[], str]:
        """Return a callable that gives nats-py the secret, but only over TLS.

        If the server offers no TLS, nats-py would send the secret in clear text.
        """

        def encrypted_only() -> str:
            if not self.client.encrypted:
                raise SecureConnWantedError
            return secret

        return encrypted_only

    async def _on_error(self, error: Exception) -> None:
        """Handle a background error; raises nothing, because nats-py would stop reading."""
        if isinstance(error, UnexpectedEOF):
            self._error = self._closing_error() or error
            self._lost.set()
            return
        if not self._established:
            self._error = error
        forbidden = violation(error)
        if forbidden is None:
            self._report(error)
        elif not self.requests.denied(forbidden):
            self._report(self._named(forbidden, error))

    def _named(self, forbidden: PermissionViolation, error: Exception) -> Exception:
        """Return the error with the subject's original case, if the subject is subscribed."""
        subject = None if forbidden.publishing else self.client.subscribed(forbidden.subject)
        return error if subject is None else may_not_subscribe(subject)

    def _closing_error(self) -> Exception | None:
        """Return the error that the server reported before it closed the connection, or None."""
        error = self.client.last_error
        return None if "permissions violation" in str(error) else error

    async def _on_closed(self) -> None:
        self._lost.set()
        self._closed.set()


async def open_link(
    server: Server, options: NatsOptions, report: Report, *, limit_s: float
) -> ServerLink | Failure:
    """Return a link to *server*, or the failure to connect within *limit_s*."""
    link = ServerLink(server, options, report)
    try:
        async with asyncio.timeout(limit_s):
            await link.establish(limit_s)
    except Exception as error:  # noqa: BLE001 - nats-py raises errors of several libraries
        await link.end()
        return explained(error, server, options)
    except BaseException:
        await link.end()
        raise
    return link
