"""The way to a cluster: its address, our credentials and TLS, and connections.

The official client's asyncio half makes them of a kubeconfig or of a pod's service account. Its
generated calls are not used: they encode bodies that are encoded already, and decode answers into
model classes that nobody here reads. aiohttp, on which it stands itself, carries the bytes. Nor
does it read kubeconfigs for us: it merges several in another order than kubectl, quotes users in
its errors, keeps their keys in files until the process ends, and goes on without credentials where
a plugin fails.
"""

import hashlib
import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from natsctl.errors import ConnectError, UsageError
from natsctl.kubernetes.access.credentials import Proof, prove
from natsctl.kubernetes.access.kubeconfig import ClusterTarget, User, find_target, read_file
from natsctl.kubernetes.access.login import Access, Login
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.kubernetes.access.proxies import proxy_for
from natsctl.kubernetes.http.sockets import Sockets
from natsctl.kubernetes.http.transport import Transport

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

IDLE_S = 60.0  # how long a connection is kept that nobody uses
BUFFER_BYTES = 256 * 1024  # of an answer that are taken in before somebody reads them


@asynccontextmanager
async def connecting(options: KubeOptions | None = None) -> AsyncIterator[Transport]:
    """Give a transport to the cluster that the options, the environment or the pod name.

    Credentials and files are read now; the server is spoken to at the first call. Leaving closes
    every connection. Meanwhile no text shows the credentials.

    Raises `UsageError` where an option, a kubeconfig or a file is wrong or there is no cluster at
    all, and `ConnectError` where a credential plugin fails.
    """
    options = KubeOptions() if options is None else options
    options.check()

    def load(before: Access | None) -> Awaitable[Access]:
        return load_access(options, before)

    access = await load(None)
    login = Login(access, load, again_s=options.reread_s)
    with login.secrets:
        async with _session(options) as session:
            yield Transport(session, access, login, options)


@asynccontextmanager
async def _session(options: KubeOptions) -> AsyncIterator[aiohttp.ClientSession]:
    async with (
        Sockets() as sockets,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=IDLE_S, socket_factory=sockets.make
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": f"natsctl/{version('natsctl')}"},
            timeout=aiohttp.ClientTimeout(total=None, connect=options.connect_timeout_s),
            read_bufsize=BUFFER_BYTES,
        ) as session,
    ):
        session._retry_connection = False  # noqa: SLF001 - what is repeated is decided here alone
        yield session


async def load_access(options: KubeOptions, before: Access | None) -> Access:
    """Return what reaches the cluster now; given the one *before*, in the same place.

    Raises as `connecting` says.
    """
    if before is not None:
        options = msgspec.structs.replace(options, context=before.context)
    way = None if before is not None and before.in_pod else find_target(options)
    with tempfile.TemporaryDirectory(prefix="natsctl-") as folder:
        if way is None:
            return await _access(_from_pod(options), options, before)
        proof = await prove(way, Path(folder), options)
        return await _access(await _from_kubeconfig(way, proof), options, before)


class _Configured(msgspec.Struct, frozen=True):
    """What the official client made of where we are to go."""

    client: "Configuration"
    context: str | None
    in_pod: bool
    namespace: str | None
    good_for_s: float
    headers: tuple[tuple[str, str], ...] = ()


def _from_pod(options: KubeOptions) -> _Configured:
    # here and below, because a start without Kubernetes need not wait a third of a second
    from kubernetes.aio.client import Configuration  # noqa: PLC0415
    from kubernetes.aio.config import ConfigException  # noqa: PLC0415
    from kubernetes.aio.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415

    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        raise UsageError(
            "there is no Kubernetes cluster to speak to: KUBECONFIG names none, ~/.kube/config "
            "names none, and this is no pod. Name a kubeconfig, or a server and a token"
        )
    folder, client = Path(options.service_account), Configuration()
    try:
        loader: Any = InClusterConfigLoader  # untyped, as what it returns
        files = {"token_filename": folder / "token", "cert_filename": folder / "ca.crt"}
        loader(**files).load_and_set(client)
        file = folder / "namespace"
        namespace = file.read_text("utf-8").strip() if file.exists() else None
    except ConfigException as error:
        raise UsageError(f"the service account in {folder}: {error}") from error
    except OSError as error:
        raise UsageError(f"the service account in {folder}: {error.strerror}") from error
    return _Configured(client, None, True, namespace, options.reread_s)


async def _from_kubeconfig(way: ClusterTarget, proof: Proof) -> _Configured:
    from kubernetes.aio.client import Configuration  # noqa: PLC0415
    from kubernetes.aio.config import ConfigException, load_kube_config_from_dict  # noqa: PLC0415

    client, only = Configuration(), "chosen"
    kubeconfig = {
        "current-context": only,
        "contexts": [{"name": only, "context": {"cluster": only, "user": only}}],
        "clusters": [{"name": only, "cluster": msgspec.to_builtins(proof.cluster)}],
        "users": [{"name": only, "user": msgspec.to_builtins(proof.user)}],
    }
    try:
        load: Any = load_kube_config_from_dict  # untyped
        await load(kubeconfig, client_configuration=client)
    except ConfigException as error:
        raise UsageError(f"{way.source}: {error}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise ConnectError(
            f"{way.source}: the auth-provider does not answer ({type(error).__name__})"
        ) from error
    except (ValueError, TypeError, LookupError):
        raise UsageError(f"{way.source}: the auth-provider makes no sense") from None
    return _Configured(
        client, way.context, False, way.namespace, proof.good_for_s, _impersonation(proof.user)
    )


def _impersonation(user: User) -> tuple[tuple[str, str], ...]:
    found = (("Impersonate-User", user.impersonate), ("Impersonate-Uid", user.impersonate_uid))
    groups = [("Impersonate-Group", group) for group in user.impersonate_groups or ()]
    return (*((name, value) for name, value in found if value), *groups)


async def _access(configured: _Configured, options: KubeOptions, before: Access | None) -> Access:
    client = configured.client
    server = client.host.rstrip("/")
    url = urlsplit(server)
    if url.scheme not in ("http", "https") or not url.hostname or url.username is not None:
        raise UsageError("the server's URL is not https://HOST:PORT, without user or password")
    headers, secret = configured.headers, ""
    found = await client.get_api_key_with_prefix("BearerToken")
    if found:
        scheme, _, secret = found.strip().partition(" ")
        headers = (("Authorization", f"{scheme} {_one_line(secret)}"), *headers)
    digest, tls = _tls(client, before) if url.scheme == "https" else (b"", True)
    return Access(
        server=server if before is None else before.server,
        namespace=options.namespace or configured.namespace or "default",
        context=configured.context,
        in_pod=configured.in_pod,
        headers=headers,
        secret=secret,
        tls=tls,
        tls_digest=digest,
        server_name=(client.tls_server_name or None) if url.scheme == "https" else None,
        proxy=proxy_for(server, client.proxy),
        good_for_s=configured.good_for_s,
    )


def _one_line(secret: str) -> str:
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        raise UsageError("a token has spaces or other characters in it that no token has")
    return secret


def _tls(client: "Configuration", before: Access | None) -> tuple[bytes, ssl.SSLContext | bool]:
    """Return how the server is known; the same as before where the files are the same.

    So connections that are open go on to be used.
    """
    from kubernetes.aio.client.rest import RESTClientObject  # noqa: PLC0415

    client.disable_strict_ssl_verification = True  # as kubectl: many clusters' own CAs are lax
    files = (client.ssl_ca_cert, client.cert_file, client.key_file)
    content = [read_file(file) if file else b"" for file in files]
    known = hashlib.sha256(repr((client.verify_ssl, content)).encode()).digest()
    if before is not None and before.tls_digest == known:
        return known, before.tls
    try:
        return known, RESTClientObject(client).ssl_context
    except ssl.SSLError as error:
        raise UsageError(
            "the CA, or our certificate and its key, are not in PEM or do not belong together: "
            f"{error.reason or error}"
        ) from error
