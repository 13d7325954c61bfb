"""Which credentials are good now, and when they are replaced."""

import asyncio
import base64
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import msgspec

from natsctl.errors import NatsctlError
from natsctl.telemetry.hiding import Secrets

log = logging.getLogger(__name__)


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """All that a request needs to reach the cluster and to be taken for us. Its repr is empty.

    Attributes:
        server: the URL, without a slash at its end.
        namespace: that of what names none.
        context: the kubeconfig's context; None where there is none.
        in_pod: whether all this is a pod's.
        headers: those that say who we are.
        secret: the credential in them, to be kept out of texts; may be empty.
        tls: how the server is known, and we to it.
        tls_digest: tells whether two are the same.
        server_name: whose certificate the server shows, where it is not the URL's host.
        proxy: the URL of the proxy on the way.
        good_for_s: the seconds after which it is to be had anew.
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
        """Return the credential, and the password where it is one, in base64 with its user."""
        yield self.secret
        with suppress(ValueError):
            user, _, password = base64.b64decode(self.secret, validate=True).decode().partition(":")
            if user.isprintable():
                yield password


Load = Callable[[Access | None], Awaitable[Access]]


class Login:
    """Keeps the access that is good now; *load* makes one, given the one before it.

    An access is replaced when its time is over, and when the server no longer takes it; by one
    of those who need it, while the others wait. `secrets` are the credentials so far.
    """

    def __init__(self, access: Access, load: Load, *, again_s: float) -> None:
        self._load = load
        self._again_s = again_s
        self._lock = asyncio.Lock()
        self._clock = asyncio.get_running_loop().time
        self.secrets = Secrets()
        self._take(access, access.good_for_s)

    async def current(self) -> Access:
        """Return the access that is good now.

        Where it cannot be replaced in time, that is logged, and the old one stays for a while:
        only the server knows whether it still holds.
        """
        access = self._access
        if self._clock() < self._good_until:
            return access
        async with self._lock:
            if access is self._access and self._clock() >= self._good_until:
                try:
                    await self._replace()
                except NatsctlError as error:
                    log.warning("credentials for %s were not renewed: %s", access.server, error)
                    self._take(access, self._again_s)
        return self._access

    async def renewed(self, refused: Access) -> Access:
        """Return an access that is newer than the *refused* one; raises what *load* raises."""
        async with self._lock:
            if self._access is refused:
                await self._replace()
        return self._access

    async def _replace(self) -> None:
        access = await self._load(self._access)
        self._take(access, access.good_for_s)

    def _take(self, access: Access, good_for_s: float) -> None:
        self._access = access
        self.secrets.keep(*access.secrets())
        self._good_until = self._clock() + good_for_s
