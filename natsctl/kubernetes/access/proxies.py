"""Selects the HTTP proxy for a server."""

import ipaddress
import os
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from natsctl.errors import UsageError


def proxy_for(server: str, configured: str | None = None) -> str | None:
    """Return the URL of the proxy for *server*, or None if there is no proxy.

    The *configured* proxy precedes HTTPS_PROXY. NO_PROXY works as in the Kubernetes tools and may
    have networks such as 10.0.0.0/8. Loopback addresses never use a proxy of the environment.

    Raises `UsageError` if the proxy's scheme is not HTTP or HTTPS.
    """
    proxy = configured or _environment_proxy(urlsplit(server))
    if proxy is None:
        return None
    url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise UsageError(
            f"the proxy for {server} is a {url.scheme} one: natsctl supports http and https"
        )
    return url.geturl()


def _environment_proxy(server: SplitResult) -> str | None:
    host = server.hostname or ""
    if host == "localhost" or _in_networks(host, ["127.0.0.0/8", "::1/128"]) or proxy_bypass(host):
        return None
    no_proxy = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if _in_networks(host, no_proxy.split(",")):
        return None
    proxies = getproxies()
    return proxies.get(server.scheme) or proxies.get("all")


def _in_networks(host: str, networks: list[str]) -> bool:
    """Return whether the host is an address in one of the networks; skip invalid networks."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        for network in networks:
            with suppress(ValueError):
                if address in ipaddress.ip_network(network.strip(), strict=False):
                    return True
    return False
