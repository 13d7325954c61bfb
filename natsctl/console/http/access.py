"""Decides whether a request of a browser may be answered.

The console acts with the NATS credentials of the user who started it. So only this user's browser
may use it: the printed URL has a token, which the page keeps in its tab and sends as a header. It's
no cookie, because a browser sends those to every port of a host. Other sites, and other ports of
this host, cannot read the token, cannot send the header, and cannot reach the console under a name
of their own (`Host`).
"""

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
POLICY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every answer."""


class ConsoleAccess:
    """The secret of one console, and the names under which it may be reached.

    Attributes:
        token: the secret of the printed URL, which each request repeats in a header.
    """

    def __init__(self, host: str) -> None:
        self.token = secrets.token_urlsafe(32)
        self._loopback = is_loopback(host)
        self._names = {"localhost", host.lower()}
        if host in ANY_ADDRESS:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def is_own_name(self, host: str | None) -> bool:
        """Return whether the `Host` header names this console, whatever its port is.

        An address is no name of another site. On the loopback, only loopback addresses are valid.
        """
        name = _name(host or "")
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return address.is_loopback or not self._loopback

    def is_signed_in(self, headers: Mapping[str, str]) -> bool:
        """Return whether the request carries the token."""
        presented = headers.get("Authorization", "").encode(errors="replace")
        return hmac.compare_digest(presented, f"Bearer {self.token}".encode())

    @staticmethod
    def is_own_page(headers: Mapping[str, str]) -> bool:
        """Return whether no other origin sent the request, as far as the browser says."""
        origin = headers.get("Origin")
        return origin is None or origin.partition("://")[2].lower() == headers["Host"].lower()


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _name(host: str) -> str:
    """Return the name in a `Host` header, without the port and the brackets of IPv6."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
