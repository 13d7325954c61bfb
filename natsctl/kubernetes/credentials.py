"""Gets the credentials for a cluster, and replaces them in time.

A user may have a token in a file, a credential plugin, or certificates inside the kubeconfig.
"""

import asyncio
import base64
import ipaddress
import json
import math
import os
import signal
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from natsctl.errors import DECODE_ERRORS, ConnectError, NatsctlError, UsageError
from natsctl.kubernetes.kubeconfig import ClusterEntry, ClusterTarget, Exec, User, read_file
from natsctl.kubernetes.options import KubeOptions
from natsctl.start_process import start_process
from natsctl.telemetry.hiding import Secrets
from natsctl.telemetry.logger import get_logger

OUTPUT_MAX = 1024 * 1024  # bytes of a plugin's output
END_S = 5.0  # timeout for the end of a killed plugin

_CONFIG = "client.authentication.k8s.io/exec"  # the cluster extension for plugins


class Credential(msgspec.Struct, frozen=True, rename="camel"):
    """A token, or a certificate and its key (PEM), or both."""

    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None

    def __repr__(self) -> str:
        return "Credential(***)"


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: Credential


async def run_plugin(plugin: Exec, cluster: ClusterEntry, *, timeout_s: float) -> Credential:
    """Run the plugin and return the credential that it prints.

    The plugin gets no input, writes its messages to the standard error of this process, and ends
    with this call.

    Raises `UsageError` if the program doesn't exist, and `ConnectError` if the plugin fails, takes
    longer than *timeout_s*, or prints no credential. Error texts never quote its output.
    """
    if plugin.interactive_mode == "Always":
        raise UsageError(f"{plugin} needs a terminal, and natsctl has none for it")
    try:
        async with asyncio.timeout(timeout_s):
            status, output = await _run(plugin, _environment(plugin, cluster))
    except TimeoutError as error:
        raise ConnectError(f"{plugin} did not end within {timeout_s:g} s") from error
    if status != 0:
        raise ConnectError(f"{plugin} failed with status {status}")
    return _credential(plugin, output)


async def _run(plugin: Exec, environment: dict[str, str]) -> tuple[int, bytes]:
    try:
        process = await start_process(
            plugin.command,
            *(plugin.args or ()),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        hint = f"; {plugin.install_hint.strip()}" if plugin.install_hint else ""
        raise UsageError(f"{plugin} cannot be run: {error.strerror}{hint}") from error
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    try:
        output = bytearray()
        while len(output) <= OUTPUT_MAX and (chunk := await process.stdout.read(65_536)):
            output += chunk
        if len(output) > OUTPUT_MAX:
            raise ConnectError(f"{plugin} prints more than {OUTPUT_MAX} bytes")
        return await process.wait(), bytes(output)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    while await process.stdout.read(OUTPUT_MAX):
                        pass  # the pipe stays open until its output is read
                    await process.wait()


def _environment(plugin: Exec, cluster: ClusterEntry) -> dict[str, str]:
    spec: dict[str, object] = {"interactive": False}
    if plugin.provide_cluster_info:
        extensions = cluster.extensions or ()
        info: dict[str, object] = {
            "server": cluster.server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify or None,
            "certificate-authority-data": cluster.authority_data(),
            "proxy-url": cluster.proxy_url,
            "config": next((one.extension for one in extensions if one.name == _CONFIG), None),
        }
        spec["cluster"] = {name: value for name, value in info.items() if value is not None}
    request = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    plugin_variables = {variable.name: variable.value for variable in plugin.env or ()}
    return {**os.environ, **plugin_variables, "KUBERNETES_EXEC_INFO": json.dumps(request)}


def _credential(plugin: Exec, output: bytes) -> Credential:
    try:
        printed = msgspec.json.decode(output, type=_ExecCredential)
    except DECODE_ERRORS:
        # the cause may quote a secret
        raise ConnectError(f"{plugin} prints no ExecCredential with a status") from None
    if printed.kind != "ExecCredential" or printed.api_version != plugin.api_version:
        raise ConnectError(
            f"{plugin} prints {printed.kind} {printed.api_version}, "
            f"not ExecCredential {plugin.api_version}"
        )
    credential = printed.status
    if bool(credential.client_certificate_data) != bool(credential.client_key_data):
        raise ConnectError(f"{plugin} prints only one of clientCertificateData and clientKeyData")
    if not credential.token and not credential.client_certificate_data:
        raise ConnectError(f"{plugin} prints no credential")
    return credential


EARLY_S = 60.0  # a credential is renewed this long before it expires, or half its lifetime
RENEW_MIN_S = 1.0  # the shortest time between two renewals


async def resolve_credentials(
    target: ClusterTarget, folder: Path, options: KubeOptions
) -> tuple[ClusterEntry, User, float]:
    """Run the plugin, read the token file, and write inline certificates into *folder*.

    Returns the cluster and the user without them, and for how many seconds they're valid. Raises
    `UsageError` if a file can't be read or is invalid, and the errors of `run_plugin`.
    """
    cluster, user = target.cluster, target.user
    good_for_s = options.reread_s if user.token_file or user.client_certificate else math.inf
    if user.token_file:
        token = read_file(user.token_file).decode("utf-8", "replace").strip()
        if not token:
            raise UsageError(f"token file {user.token_file} is empty")
        user = msgspec.structs.replace(user, token=token, token_file=None)
    inline = {
        "tls.crt": user.client_certificate_data,
        "tls.key": user.client_key_data,
        "ca.crt": cluster.certificate_authority_data,
    }
    certificates = {name: _decoded(data, name) for name, data in inline.items() if data}
    if user.exec is not None:
        credential = await run_plugin(user.exec, cluster, timeout_s=options.plugin_timeout_s)
        good_for_s = math.inf
        if credential.expiration_timestamp is not None:
            expires_at = credential.expiration_timestamp
            if expires_at.tzinfo is None:
                expires_at = expires_at.replace(tzinfo=UTC)
            lifetime_s = (expires_at - datetime.now(UTC)).total_seconds()
            good_for_s = max(RENEW_MIN_S, lifetime_s - min(EARLY_S, lifetime_s / 2))
        user = msgspec.structs.replace(user, exec=None, token=credential.token or user.token)
        if credential.client_certificate_data and credential.client_key_data:
            certificates["tls.crt"] = credential.client_certificate_data.encode()
            certificates["tls.key"] = credential.client_key_data.encode()
    for name, content in certificates.items():
        (folder / name).write_bytes(content)

    def path(name: str, given: str | None) -> str | None:
        return str(folder / name) if name in certificates else given

    cluster = msgspec.structs.replace(
        cluster,
        certificate_authority=path("ca.crt", cluster.certificate_authority),
        certificate_authority_data=None,
    )
    user = msgspec.structs.replace(
        user,
        client_certificate=path("tls.crt", user.client_certificate),
        client_certificate_data=None,
        client_key=path("tls.key", user.client_key),
        client_key_data=None,
    )
    return cluster, user, good_for_s


def _decoded(data: str, name: str) -> bytes:
    try:
        return base64.b64decode(data)
    except ValueError:
        raise UsageError(f"the kubeconfig's data for {name} is not in base64") from None


def proxy_for(server: str, configured: str | None = None) -> str | None:
    """Return the URL of the proxy for *server*, or None if there is no proxy.

    The *configured* proxy precedes HTTPS_PROXY. NO_PROXY works as in the Kubernetes tools and may
    have networks such as 10.0.0.0/8. Loopback addresses never use a proxy of the environment.

    Raises `UsageError` if the proxy's scheme isn't HTTP or HTTPS.
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
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        for network in networks:
            with suppress(ValueError):
                if address in ipaddress.ip_network(network.strip(), strict=False):
                    return True
    return False


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
        server_name: the host name in the server's certificate, if it isn't the URL's host.
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

        If that fails, the log says so, and the old access is used for *retry_s* seconds more: only
        the server knows whether it's still valid.
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
