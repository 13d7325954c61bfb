"""Explains why a connection failed or ended, and what to do about it."""

import socket
import ssl

import msgspec
from nats.errors import Error as NatsError
from nats.errors import SecureConnWantedError, StaleConnectionError, UnexpectedEOF

from natsctl.errors import UsageError
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.connection.servers import Server

_REFUSALS = ("authorization violation", "authentication expired", "authentication revoked")
_TEMPORARY = (
    (ConnectionRefusedError, "connection refused; is a NATS server running there?"),
    (socket.gaierror, "the host name is unknown"),
    (TimeoutError, "no answer in time"),
)
_CLOSED = (UnexpectedEOF, ConnectionResetError, BrokenPipeError)


class Failure(msgspec.Struct, frozen=True):
    """A failed attempt to connect. A retry cannot succeed if `final` is true."""

    server: Server
    reason: str
    final: bool
    error: Exception

    def __str__(self) -> str:
        return f"{self.server.address}: {self.reason}"


def explained(error: Exception, server: Server, options: NatsOptions) -> Failure:
    """Return a failure that explains *error*, which an attempt to connect to *server* raised."""
    final = _final_reason(error, server, options)
    reason = final or _temporary_reason(error, options)
    return Failure(server, reason, final is not None, error)


def ending(error: Exception | None) -> str:
    """Return a short text that explains why an established connection ended."""
    if isinstance(error, _CLOSED):
        return "the server closed the connection"
    if isinstance(error, StaleConnectionError):
        return "the server no longer answers"
    return "the connection was closed" if error is None else str(error)


def _final_reason(error: Exception, server: Server, options: NatsOptions) -> str | None:
    match error:
        case UsageError():
            return str(error)
        case NatsError() if any(refusal in str(error).lower() for refusal in _REFUSALS):
            return f"the server refuses {_identity(server, options)}"
        case SecureConnWantedError():
            return "the server offers no TLS, but the options require it"
        case ssl.SSLCertVerificationError():
            ca = options.tls_ca or "this machine"
            return (
                f"{ca} does not verify the server's certificate ({error.verify_message}); "
                "set tls_ca to the CA that does"
            )
        case ssl.SSLError() if "CERTIFICATE_REQUIRED" in str(error):
            return "the server requires a client certificate; set tls_cert and tls_key"
        case _:
            return None


def _temporary_reason(error: Exception, options: NatsOptions) -> str:
    for kind, reason in _TEMPORARY:
        if isinstance(error, kind):
            return reason
    if isinstance(error, _CLOSED):
        reason = "the server closed the connection at once"
        return reason if options.tls_cert else f"{reason}; does it require a client certificate?"
    if isinstance(error, ssl.SSLError):
        return f"TLS fails: {error.reason or error}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _identity(server: Server, options: NatsOptions) -> str:
    if options.identity is not None:
        return options.identity
    if server.user:
        return f"user {server.user!r} and the password in its URL"
    if server.token:
        return "the token in its URL"
    return "a connection without credentials; give it creds, an nkey, user and password, or a token"
