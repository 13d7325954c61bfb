"""Connects to a cluster: address, credentials, TLS, HTTP connections, and the stores of its kinds.

This is the only module that imports the official Kubernetes client, whose asyncio half turns a
kubeconfig or a pod's service account into an address, credentials and TLS settings. `transport`
sends the requests: the client's generated calls encode every body again and decode every response
into model classes. natsctl also reads kubeconfig files itself, because the client merges files in
another order than kubectl, quotes users in errors, keeps their keys in files until the
process ends, and continues without credentials if a plugin fails.
"""

import asyncio
import hashlib
import importlib
import os
import random
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from natsctl.errors import ConnectError, PermissionDeniedError, StoreError, UsageError
from natsctl.kubernetes.credentials import Access, Login, proxy_for, resolve_credentials
from natsctl.kubernetes.discovery import ApiResource, Discovery
from natsctl.kubernetes.http import HttpPool
from natsctl.kubernetes.kubeconfig import ClusterEntry, User, find_target, read_file
from natsctl.kubernetes.options import KubeOptions
from natsctl.kubernetes.recorder import PAUSE_S as EVENT_PAUSE_S
from natsctl.kubernetes.recorder import KubeRecorder
from natsctl.kubernetes.store import KubeStore
from natsctl.kubernetes.transport import Transport
from natsctl.kubernetes.watch import TIMEOUT_S, Incarnation
from natsctl.model import documents
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.store import Guarded
from natsctl.telemetry.histogram import Distribution
from natsctl.telemetry.logger import get_logger
from natsctl.telemetry.outbox import SendingPace, sending

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

CLIENT = "kubernetes.aio.config"
_HEADER_SIGNS = "!#$&'*+^`|"  # of a header's name, besides letters, digits and -._~
CLOSE_S = 2.0  # timeout for closing all connections


@asynccontextmanager
async def connecting(options: KubeOptions | None = None) -> AsyncIterator[Transport]:
    """Yield a transport to the cluster that the options, the environment or the pod select.

    Entering reads credentials and files; the first call connects to the server. Leaving closes
    every connection. While the context is open, no text shows the credentials.

    Raises `UsageError` if an option, a kubeconfig or a file is invalid or if there is no cluster,
    and `ConnectError` if a credential plugin fails.
    """
    options = KubeOptions() if options is None else options
    options.check()

    def load(previous: Access | None) -> Awaitable[Access]:
        return load_access(options, previous)

    access = await load(None)
    login = Login(access, load, retry_s=options.reread_s)
    connector = aiohttp.TCPConnector(limit=0)
    with login.secrets:
        try:
            pool = HttpPool(connector, options.connect_timeout_s)
            yield Transport(pool, access, login, options)
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await connector.close(abort_ssl=True)  # without the handshake that ends TLS


async def load_access(options: KubeOptions, previous: Access | None) -> Access:
    """Return the access for the cluster; with a *previous* access, for the same context.

    Raises the errors of `connecting`.
    """
    if previous is not None:
        options = msgspec.structs.replace(options, context=previous.context)
    if CLIENT not in sys.modules:
        # the import takes a third of a second, in which the event loop would run nothing else
        await asyncio.to_thread(importlib.import_module, CLIENT)
    target = None if previous is not None and previous.in_pod else find_target(options)
    with tempfile.TemporaryDirectory(prefix="natsctl-") as folder:
        headers: tuple[tuple[str, str], ...] = ()
        if target is None:
            client, namespace = _from_pod(options)
            good_for_s = options.reread_s
        else:
            cluster, user, good_for_s = await resolve_credentials(target, Path(folder), options)
            client = await _from_kubeconfig(target.source, cluster, user)
            namespace, headers = target.namespace, _impersonation_headers(user)
        server = client.host.rstrip("/")
        url = urlsplit(server)
        if url.scheme not in ("http", "https") or not url.hostname or url.username is not None:
            raise UsageError("the server's URL is not https://HOST:PORT, without user or password")
        secret = ""
        authorization = await client.get_api_key_with_prefix("BearerToken")
        if authorization:
            scheme, _, secret = authorization.strip().partition(" ")
            if not secret.isascii() or not secret.isprintable() or " " in secret:
                raise UsageError("the token has spaces or other characters that no token has")
            headers = (("Authorization", f"{scheme} {secret}"), *headers)
        digest, tls = _tls(client, previous) if url.scheme == "https" else (b"", True)
    return Access(
        server=server if previous is None else previous.server,
        namespace=options.namespace or namespace or "default",
        context=None if target is None else target.context,
        in_pod=target is None,
        headers=headers,
        secret=secret,
        tls=tls,
        tls_digest=digest,
        server_name=(client.tls_server_name or None) if url.scheme == "https" else None,
        proxy=proxy_for(server, client.proxy),
        good_for_s=good_for_s,
    )


def _from_pod(options: KubeOptions) -> tuple["Configuration", str | None]:
    # imported here and below because a process may need no cluster
    from kubernetes.aio.client import Configuration  # noqa: PLC0415
    from kubernetes.aio.config import ConfigException  # noqa: PLC0415
    from kubernetes.aio.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415

    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        raise UsageError(
            "there is no Kubernetes cluster to connect to: neither KUBECONFIG nor ~/.kube/config "
            "names one, and this process is not in a pod. Set a kubeconfig, or a server and a token"
        )
    folder, client = Path(options.service_account), Configuration()
    try:
        loader: Any = InClusterConfigLoader  # untyped
        files = {"token_filename": folder / "token", "cert_filename": folder / "ca.crt"}
        loader(**files).load_and_set(client)
        file = folder / "namespace"
        return client, file.read_text("utf-8").strip() if file.exists() else None
    except ConfigException as error:
        raise UsageError(f"the service account in {folder}: {error}") from error
    except OSError as error:
        raise UsageError(f"the service account in {folder}: {error.strerror}") from error


async def _from_kubeconfig(source: str, cluster: ClusterEntry, user: User) -> "Configuration":
    from kubernetes.aio.client import Configuration  # noqa: PLC0415
    from kubernetes.aio.config import ConfigException, load_kube_config_from_dict  # noqa: PLC0415

    client, name = Configuration(), "selected"
    kubeconfig = {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": msgspec.to_builtins(cluster)}],
        "users": [{"name": name, "user": msgspec.to_builtins(user)}],
    }
    try:
        load: Any = load_kube_config_from_dict  # untyped
        await load(kubeconfig, client_configuration=client)
    except ConfigException as error:
        raise UsageError(f"{source}: {error}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise ConnectError(
            f"{source}: the auth-provider does not answer ({type(error).__name__})"
        ) from error
    except (ValueError, TypeError, LookupError):
        raise UsageError(f"{source}: the auth-provider is invalid") from None
    return client


def _impersonation_headers(user: User) -> tuple[tuple[str, str], ...]:
    headers = (("Impersonate-User", user.impersonate), ("Impersonate-Uid", user.impersonate_uid))
    groups = [("Impersonate-Group", group) for group in user.impersonate_groups or ()]
    extra = [
        (f"Impersonate-Extra-{quote(name, safe=_HEADER_SIGNS)}", value)
        for name, values in (user.impersonate_extra or {}).items()
        for value in values
    ]
    sent = (*((name, value) for name, value in headers if value), *groups, *extra)
    for name, value in sent:
        if not value.isprintable():
            raise UsageError(f"the kubeconfig has a line break or the like for {name}")
    return sent


def _tls(client: "Configuration", previous: Access | None) -> tuple[bytes, ssl.SSLContext | bool]:
    """Return the digest of the TLS files, and the TLS context.

    If the files did not change, the context is the previous one, so open connections stay in use.
    """
    from kubernetes.aio.client.rest import RESTClientObject  # noqa: PLC0415

    # as kubectl does, because many cluster CAs break strict rules
    client.disable_strict_ssl_verification = True
    files = (client.ssl_ca_cert, client.cert_file, client.key_file)
    content = [read_file(file) if file else b"" for file in files]
    digest = hashlib.sha256(repr((client.verify_ssl, content)).encode()).digest()
    if previous is not None and previous.tls_digest == digest:
        return digest, previous.tls
    try:
        return digest, RESTClientObject(client).ssl_context
    except ssl.SSLError as error:
        raise UsageError(
            "the CA, or the client certificate and its key, are not in PEM or do not belong "
            f"together: {error.reason or error}"
        ) from error


log = get_logger(__name__)

IDENTITY = "/api/v1/namespaces/kube-system"
PAUSE_S = 2.0  # between two attempts to reach the server
CONNECTIONS = 2  # that may be tried one after the other until the server answers for the first time


class Kube(Guarded):
    """The stores of one cluster; a `Cluster`."""

    def __init__(self, transport: Transport, *, watch_timeout_s: float = TIMEOUT_S) -> None:
        self.transport = transport
        self.discovery = Discovery(transport)
        self._watch_timeout_s = watch_timeout_s
        self._incarnations: dict[str, Incarnation] = {}
        self._event_pace = SendingPace(EVENT_PAUSE_S)  # of all recorders together

    async def open(self, kind: Kind[Any]) -> KubeStore:
        """Return the kind's store without a request to the server.

        If the server doesn't have the kind, or denies access to it, the store's calls raise an
        error until that changes.
        """
        if not isinstance(kind, KubeKind):
            raise UsageError(f"{kind.name} is not kept in Kubernetes")
        incarnation = self._incarnations.setdefault(kind.name, Incarnation(self.transport.server))
        return KubeStore(
            self.transport,
            self.discovery,
            kind,
            incarnation,
            guard=self.guard,
            timeout_s=self._watch_timeout_s,
        )

    def requests(self) -> dict[tuple[str, ...], int]:
        host = urlsplit(self.transport.server).netloc
        return {(*answer, host): count for answer, count in self.transport.answers.items()}

    def times(self) -> dict[tuple[str, ...], Distribution]:
        """Return how long the server took to begin its responses, by method and host."""
        host = urlsplit(self.transport.server).netloc
        return {(method, host): times.read() for method, times in self.transport.times.items()}

    async def resource(self, api_version: str, kind: str) -> ApiResource:
        """Look the kind up at the server, and return its plural, its scope and its verbs.

        Raises `StoreMissingError` if the server has no such kind. Nothing is cached, for callers
        with a cache of their own.
        """
        return await self.discovery.find(api_version, kind, ttl_s=0.0)

    async def identity(self) -> str:
        """Return the uid of the namespace `kube-system`, which tells clusters apart.

        Raises `PermissionDeniedError` if the user may not read that namespace.
        """
        reply = await self.transport.call("GET", IDENTITY)
        uid = documents.metadata_of(documents.parse(reply.body)).get("uid")
        if not isinstance(uid, str) or not uid:
            raise StoreError(f"GET {IDENTITY} returned no uid")
        return uid

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[KubeRecorder]:
        recorder = KubeRecorder(self.transport, controller, self.guard, self._event_pace)
        async with sending(recorder.outbox):
            yield recorder


@asynccontextmanager
async def connect_kube(
    options: KubeOptions | None = None, *, wait: bool = False, watch_timeout_s: float = TIMEOUT_S
) -> AsyncIterator[Kube]:
    """Connect to a Kubernetes cluster, for as long as the context is open.

    Args:
        options: the cluster and the credentials; None means the cluster that kubectl uses.
        wait: try again, and log each failure, until the server answers.
        watch_timeout_s: seconds after which a watch request ends at the latest. The next one
            resumes at the same revision, without a list.

    The server has the time for two connections to answer, 10 s by default. Raises `UsageError` if
    an option is invalid, and `ConnectError` if the server doesn't answer, can't be reached or
    doesn't accept the credentials.
    """
    options = KubeOptions() if options is None else options
    answer_s = min(CONNECTIONS * options.connect_timeout_s, options.timeout_s)
    async with connecting(options) as transport:
        while True:
            try:
                await transport.call("GET", "/version", timeout_s=answer_s)
                break
            except PermissionDeniedError as error:
                raise ConnectError(
                    f"Kubernetes at {transport.server} denies access: {error}"
                ) from error
            except StoreError as error:
                if not wait:
                    raise ConnectError(f"cannot connect to Kubernetes: {error}") from error
                log.warning("cannot reach Kubernetes yet", server=transport.server, error=error)
                await asyncio.sleep(PAUSE_S * random.uniform(0.5, 1.0))  # noqa: S311 - jitter only
        yield Kube(transport, watch_timeout_s=watch_timeout_s)
