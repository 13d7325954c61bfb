"""An address to listen on."""

import os
import socket

import msgspec

from natsctl.errors import UsageError

PORT_MAX = 65_535

_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not bound


class Address(msgspec.Struct, frozen=True):
    """A host and a port; an empty host means all interfaces, port 0 any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Return the address in `HOST:PORT`, `[HOST]:PORT` for IPv6, or `:PORT`.

        Raises `UsageError` with examples if the text has another form.
        """
        host, colon, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if not (colon and port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
            raise _invalid(text)
        if not bracketed and set(host) & set(":/@[]"):
            raise _invalid(text)
        return cls(host[1:-1] if bracketed else host, int(port))

    @property
    def nearby(self) -> "Address":
        """The address to connect to from this machine: the loopback instead of all interfaces."""
        return Address(_LOOPBACK.get(self.host, self.host), self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _invalid(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is not an address to listen on: write HOST:PORT, for example 127.0.0.1:8080, "
        "[::1]:8080, or :8080 for all interfaces"
    )


def reason_of(error: OSError | UnicodeError) -> str:
    """Return why the process cannot listen, without the words that Python puts around it."""
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno:
        return os.strerror(error.errno).lower()
    return getattr(error, "strerror", None) or str(error)
