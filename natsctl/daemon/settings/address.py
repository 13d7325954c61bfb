"""Where to listen."""

import msgspec

from natsctl.errors import UsageError

PORT_MAX = 65_535

_NEAREST = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not to bind


class Address(msgspec.Struct, frozen=True):
    """A host, empty for every interface of this machine, and a port, 0 for any that is free."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Return the address that *text* says: `HOST:PORT`, `[HOST]:PORT` for IPv6, or `:PORT`.

        Raises `UsageError`, with examples, where it says none.
        """
        host, colon, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if not (colon and port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
            raise _unclear(text)
        if not bracketed and set(host) & set(":/@[]"):
            raise _unclear(text)
        return cls(host[1:-1] if bracketed else host, int(port))

    @property
    def nearby(self) -> "Address":
        """Where this machine reaches who listens here: every interface includes the loopback."""
        return Address(_NEAREST.get(self.host, self.host), self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _unclear(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is not an address to listen on: write HOST:PORT, for example 127.0.0.1:8080, "
        "[::1]:8080, or :8080 for every interface"
    )
