"""Which proxy is on the way to a server."""

import ipaddress
import os
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from natsctl.errors import UsageError

_LOCAL = "localhost"


def proxy_for(server: str, named: str | None = None) -> str | None:
    """Return the URL of the proxy to *server*: the one *named*, or HTTPS_PROXY's; None: none.

    NO_PROXY is heeded as the Kubernetes tools do, networks such as 10.0.0.0/8 included; this
    machine itself is never spoken to through a proxy that only the environment names.

    Raises `UsageError` for a proxy that is not HTTP or HTTPS.
    """
    proxy = named or _of_environment(urlsplit(server))
    if proxy is None:
        return None
    url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise UsageError(
            f"the proxy for {server} is a {url.scheme} one: natsctl knows http and https"
        )
    return url.geturl()


def _of_environment(server: SplitResult) -> str | None:
    proxies, host = getproxies(), server.hostname or ""
    if host == _LOCAL or _within(host, ["127.0.0.0/8", "::1/128"]) or proxy_bypass(host):
        return None
    excepted = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if _within(host, excepted.split(",")):
        return None
    return proxies.get(server.scheme) or proxies.get("all")


def _within(host: str, networks: list[str]) -> bool:
    """Whether the host is an address in one of the networks; what is no network is left out."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        for network in networks:
            with suppress(ValueError):
                if address in ipaddress.ip_network(network.strip(), strict=False):
                    return True
    return False
