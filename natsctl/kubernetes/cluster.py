"""A Kubernetes cluster as a system of stores: the entry point of this package."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from natsctl.errors import ConnectError, PermissionDeniedError, StoreError, UsageError
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.kubernetes.connect import connecting
from natsctl.kubernetes.http.transport import Transport
from natsctl.kubernetes.objects.store import KubeStore
from natsctl.kubernetes.recorder import PAUSE_S as EVENT_PAUSE_S
from natsctl.kubernetes.recorder import KubeRecorder, recording
from natsctl.kubernetes.resources.discovery import ApiResource, Discovery, KindWire
from natsctl.kubernetes.watch.listing import Incarnation
from natsctl.kubernetes.watch.stream import TIMEOUT_S
from natsctl.model import documents
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.write_guard import Guarded
from natsctl.telemetry.logger import get_logger
from natsctl.telemetry.outbox import SendingPace

log = get_logger(__name__)

IDENTITY = "/api/v1/namespaces/kube-system"
PAUSE_S = 2.0  # between two attempts to reach the server
CONNECTIONS = 2  # that may be tried one after the other until the server answers for the first time


class Kube(Guarded):
    """The stores of one cluster; a `Cluster`."""

    def __init__(self, transport: Transport, *, watch_timeout_s: float = TIMEOUT_S) -> None:
        self.transport = transport
        self.discovery = Discovery(transport)
        self._uncached = Discovery(transport, ttl_s=0.0)  # for callers with a cache of their own
        self._watch_timeout_s = watch_timeout_s
        self._incarnations: dict[str, Incarnation] = {}
        self._event_pace = SendingPace(EVENT_PAUSE_S)  # of all recorders together

    async def open(self, kind: Kind[Any]) -> KubeStore:
        """Return the kind's store without a request to the server.

        If the server does not have the kind, or denies access to it, the store's calls raise an
        error until that changes.
        """
        if not isinstance(kind, KubeKind):
            raise UsageError(f"{kind.name} is not kept in Kubernetes")
        incarnation = self._incarnations.setdefault(kind.name, Incarnation(self.transport.server))
        return KubeStore(
            KindWire(self.transport, self.discovery, kind, self.guard),
            kind,
            self.discovery.find_optional if kind.optional else self.discovery.find,
            incarnation,
            timeout_s=self._watch_timeout_s,
        )

    def requests(self) -> dict[tuple[str, ...], int]:
        """Return the number of requests by status (or `<error>`), method and host."""
        host = urlsplit(self.transport.server).netloc
        return {(*answer, host): count for answer, count in self.transport.answers.items()}

    async def resource(self, api_version: str, kind: str) -> ApiResource:
        """Look the kind up at the server, and return its plural, its scope and its verbs.

        Raises `StoreMissingError` if the server has no such kind.
        """
        return await self._uncached.find(api_version, kind)

    async def identity(self) -> str:
        """Return the uid of the namespace `kube-system`, by which clusters are told apart.

        Raises `PermissionDeniedError` if the user may not read that namespace.
        """
        reply = await self.transport.call("GET", IDENTITY)
        uid = documents.metadata_of(documents.parse(reply.body)).get("uid")
        if not isinstance(uid, str) or not uid:
            raise StoreError(f"GET {IDENTITY} returned no uid")
        return uid

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[KubeRecorder]:
        """Yield a recorder that writes Events about the controller's objects in the cluster."""
        async with recording(self.transport, controller, self.guard, self._event_pace) as recorder:
            yield recorder


@asynccontextmanager
async def connect_kube(
    options: KubeOptions | None = None, *, wait: bool = False, watch_timeout_s: float = TIMEOUT_S
) -> AsyncIterator[Kube]:
    """Connect to a Kubernetes cluster while the context is open.

    Args:
        options: the cluster and the credentials; None means the cluster that kubectl uses.
        wait: retry, and log each failure, until the server can be reached.
        watch_timeout_s: seconds after which a watch request ends at the latest. The next request
            resumes at the same revision, without a list.

    The server must answer within the time for two connections, 10 s by default. Raises `UsageError`
    if an option is invalid, and `ConnectError` if the server does not answer, cannot be reached or
    does not accept the credentials.
    """
    options = KubeOptions() if options is None else options
    answer_s = min(CONNECTIONS * options.connect_timeout_s, options.timeout_s)
    async with connecting(options) as transport:
        await _check_connection(transport, answer_s, wait=wait)
        yield Kube(transport, watch_timeout_s=watch_timeout_s)


async def _check_connection(transport: Transport, answer_s: float, *, wait: bool) -> None:
    """Return as soon as the server answers; see `connect_kube`."""
    while True:
        try:
            await transport.call("GET", "/version", timeout_s=answer_s)
        except PermissionDeniedError as error:
            raise ConnectError(
                f"Kubernetes at {transport.server} denies access: {error}"
            ) from error
        except StoreError as error:
            if not wait:
                raise ConnectError(f"cannot connect to Kubernetes: {error}") from error
            log.warning("cannot reach Kubernetes yet", server=transport.server, error=error)
            await asyncio.sleep(PAUSE_S * random.uniform(0.5, 1.0))  # noqa: S311 - jitter only
        else:
            return
