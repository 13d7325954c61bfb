"""Why a request got no answer, and whether the server may have seen it."""

import aiohttp
import msgspec


class Broken(msgspec.Struct, frozen=True):
    """A request without an answer. `sent` is False where the server cannot have seen it."""

    reason: str
    sent: bool
    certificate: bool = False


_NEVER_SENT = (
    (aiohttp.ClientConnectorDNSError, "the host name is unknown"),
    (aiohttp.ConnectionTimeoutError, "no connection in time"),
)
_SENT = (
    (aiohttp.ServerDisconnectedError, "the server closed the connection"),
    (aiohttp.ClientPayloadError, "the connection ended within the answer"),
)


def explained(error: Exception) -> Broken:
    """Return what an aiohttp or OS error means; the text holds no address and no secret."""
    for sent, meanings in ((False, _NEVER_SENT), (True, _SENT)):
        for kind, reason in meanings:
            if isinstance(error, kind):
                return Broken(reason, sent=sent)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return Broken(_distrust(error), sent=False, certificate=True)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return Broken(f"its proxy refuses with status {error.status}", sent=False)
    if isinstance(error, aiohttp.ClientConnectorError):
        proxy = "its proxy: " if isinstance(error, aiohttp.ClientProxyConnectionError) else ""
        return Broken(proxy + _told(error.os_error), sent=False)
    if isinstance(error, OSError):
        return Broken(_told(error), sent=True)
    return Broken(f"the answer is not HTTP ({type(error).__name__})", sent=True)


def _distrust(error: aiohttp.ClientConnectorCertificateError) -> str:
    why = getattr(error.certificate_error, "verify_message", "") or "it is not trusted"
    return (
        f"its certificate is not accepted ({why}); give the CA that vouches for it as tls_ca, or "
        "in the kubeconfig"
    )


def _told(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return (error.strerror or type(error).__name__).strip()
