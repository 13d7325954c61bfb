"""Explains why a request has no response, and whether the server may have received it."""

import aiohttp
import msgspec


class ConnectionFailure(msgspec.Struct, frozen=True):
    """The reason why a request has no response.

    `sent` is False if the server cannot have received the request. `certificate` is True if the
    server's certificate was rejected.
    """

    reason: str
    sent: bool
    certificate: bool = False


def explain_failure(error: Exception) -> ConnectionFailure:
    """Return the meaning of an aiohttp or OS error; its text has no address and no secret."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return ConnectionFailure(_certificate_reason(error), sent=False, certificate=True)
    sent = False
    match error:
        case aiohttp.ClientConnectorDNSError():
            reason = "the host name is unknown"
        case aiohttp.ConnectionTimeoutError():
            reason = "the connection timed out"
        case aiohttp.ClientHttpProxyError():
            reason = f"the proxy rejects the connection with status {error.status}"
        case aiohttp.ClientProxyConnectionError():
            reason = f"the proxy: {_os_reason(error.os_error)}"
        case aiohttp.ClientConnectorError():
            reason = _os_reason(error.os_error)
        case aiohttp.ServerDisconnectedError():
            sent, reason = True, "the server closed the connection"
        case aiohttp.ClientPayloadError():
            sent, reason = True, "the connection ended within the response"
        case OSError():
            sent, reason = True, _os_reason(error)
        case _:
            sent, reason = True, f"the response is not HTTP ({type(error).__name__})"
    return ConnectionFailure(reason, sent=sent)


def _certificate_reason(error: aiohttp.ClientConnectorCertificateError) -> str:
    message = getattr(error.certificate_error, "verify_message", "") or "it is not trusted"
    return (
        f"its certificate is not accepted ({message}); set tls_ca to the CA that signed it, or set "
        "the CA in the kubeconfig"
    )


def _os_reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return (error.strerror or type(error).__name__).strip()
