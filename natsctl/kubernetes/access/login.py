"""Keeps the current credentials for a cluster and replaces them in time."""

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import msgspec

from natsctl.errors import NatsctlError
from natsctl.telemetry.hiding import Secrets
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The address, the credentials and the TLS settings of a request. Its repr shows no secret.

    Attributes:
        server: the URL, without a slash at its end.
        namespace: the default namespace.
        context: the kubeconfig's context; None if there is no kubeconfig.
        in_pod: whether the values come from a pod's service account.
        headers: the headers that authenticate the user.
        secret: the credential in `headers`, which no text may show; it may be empty.
        tls: the TLS context with the trusted CA and the client certificate.
        tls_digest: equal for two accesses that have the same TLS settings.
        server_name: the host name in the server's certificate, if it is not the URL's host.
        proxy: the URL of the HTTP proxy.
        good_for_s: seconds after which the access must be loaded again.
    """

    server: str
    namespace: str
    context: str | None
    in_pod: bool
    headers: tuple[tuple[str, str], ...]
    secret: str
    tls: ssl.SSLContext | bool
    tls_digest: bytes
    server_name: str | None
    proxy: str | None
    good_for_s: float

    def __repr__(self) -> str:
        return f"Access({self.server})"

    def secrets(self) -> Iterator[str]:
        """Yield the credential and, if it is basic authentication, the password."""
        yield self.secret
        with suppress(ValueError):
            user, _, password = base64.b64decode(self.secret, validate=True).decode().partition(":")
            if user.isprintable():
                yield password


Load = Callable[[Access | None], Awaitable[Access]]


class Login:
    """Keeps the current access. *load* returns a new one, given the previous one.

    An access is replaced when it expires and when the server rejects it. One caller loads the new
    access while the others wait for it. `secrets` has every credential so far.
    """

    def __init__(self, access: Access, load: Load, *, retry_s: float) -> None:
        self._load = load
        self._retry_s = retry_s
        self._lock = asyncio.Lock()
        self._clock = asyncio.get_running_loop().time
        self.secrets = Secrets()
        self._use(access, access.good_for_s)

    async def current(self) -> Access:
        """Return the current access, and renew it first if it has expired.

        If renewal fails, the failure is logged and the old access is used for *retry_s* seconds
        more, because only the server knows whether it is still valid.
        """
        access = self._access
        if self._clock() < self._good_until:
            return access
        async with self._lock:
            if access is self._access and self._clock() >= self._good_until:
                try:
                    await self._replace()
                except NatsctlError as error:
                    log.warning("cannot renew credentials", server=access.server, error=error)
                    self._use(access, self._retry_s)
        return self._access

    async def renew(self, rejected: Access) -> Access:
        """Return an access newer than the *rejected* one; raises the errors of *load*."""
        async with self._lock:
            if self._access is rejected:
                await self._replace()
        return self._access

    async def _replace(self) -> None:
        access = await self._load(self._access)
        self._use(access, access.good_for_s)

    def _use(self, access: Access, good_for_s: float) -> None:
        self._access = access
        self.secrets.keep(*access.secrets())
        self._good_until = self._clock() + good_for_s
