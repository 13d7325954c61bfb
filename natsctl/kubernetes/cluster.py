"""Kubernetes as a system that keeps objects of many kinds: the way in for everyone above."""

import asyncio
import copy
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import urlsplit

from natsctl.errors import ConnectError, PermissionDeniedError, StoreError, UsageError
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.kubernetes.connect import connecting
from natsctl.kubernetes.http.transport import Transport
from natsctl.kubernetes.objects.store import KubeStore
from natsctl.kubernetes.recorder import KubeRecorder, recording
from natsctl.kubernetes.resources.discovery import ApiResource, Discovery, KindWire
from natsctl.kubernetes.watch.listing import Incarnation
from natsctl.kubernetes.watch.stream import TIMEOUT_S
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.write_guard import UNGUARDED, WriteGuard

log = logging.getLogger(__name__)

PAUSE_S = 2.0  # between two tries to reach a server


class Kube:
    """The kinds of one cluster; a `Cluster`."""

    def __init__(self, transport: Transport, *, watch_timeout_s: float = TIMEOUT_S) -> None:
        self.transport = transport
        self.discovery = Discovery(transport)
        self._asking = Discovery(transport, ttl_s=0.0)  # for those who remember it themselves
        self._watch_timeout_s = watch_timeout_s
        self._incarnations: dict[str, Incarnation] = {}
        self.guard = UNGUARDED

    def guarded(self, guard: WriteGuard) -> Self:
        """See `Stores.guarded`."""
        guarded = copy.copy(self)
        guarded.guard = guard
        return guarded

    async def open(self, kind: Kind[Any]) -> KubeStore:
        """Return the kind's store; the server is asked nothing.

        A kind that it does not have yet, or that we may not see, is met by whoever reads it, and
        found there as soon as it comes.
        """
        if not isinstance(kind, KubeKind):
            raise UsageError(f"{kind.name} is not kept in Kubernetes")
        incarnation = self._incarnations.setdefault(kind.name, Incarnation(self.transport.server))
        return KubeStore(
            KindWire(self.transport, self.discovery, kind, self.guard),
            kind,
            self.discovery.find,
            incarnation,
            timeout_s=self._watch_timeout_s,
        )

    def requests(self) -> dict[tuple[str, ...], int]:
        """Return how many requests were sent, by status (or `<error>`), method and host."""
        host = urlsplit(self.transport.server).netloc
        return {(*each, host): count for each, count in self.transport.answers.items()}

    async def resource(self, api_version: str, kind: str) -> ApiResource:
        """Return what the server calls a kind now, and can do with it.

        Raises `StoreMissingError` where it has no such kind.
        """
        return await self._asking.find(api_version, kind)

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[KubeRecorder]:
        """Return where the controller's events go: to Events of the objects that they are about."""
        async with recording(self.transport, controller, self.guard) as recorder:
            yield recorder


@asynccontextmanager
async def connect_kube(
    options: KubeOptions | None = None, *, wait: bool = False, watch_timeout_s: float = TIMEOUT_S
) -> AsyncIterator[Kube]:
    """Connect to a Kubernetes cluster, for as long as the context lasts.

    Args:
        options: how; None is the cluster that kubectl would speak to.
        wait: keep trying, and say so in the log, until the server can be reached.
        watch_timeout_s: how long a watch may be silent until it is replaced; each is begun anew
            about that often, without listing anew.

    Raises `UsageError` for a wrong option, `ConnectError` where the server cannot be reached or
    does not accept our credentials.
    """
    async with connecting(options or KubeOptions()) as transport:
        await _reach(transport, wait=wait)
        yield Kube(transport, watch_timeout_s=watch_timeout_s)


async def _reach(transport: Transport, *, wait: bool) -> None:
    """Make sure that the server answers."""
    while True:
        try:
            await transport.call("GET", "/version")
        except PermissionDeniedError as error:
            raise ConnectError(
                f"Kubernetes at {transport.server} lets us not in: {error}"
            ) from error
        except StoreError as error:
            if not wait:
                raise ConnectError(f"cannot connect to Kubernetes: {error}") from error
            log.warning("Kubernetes cannot be reached yet: %s", error)
            await asyncio.sleep(PAUSE_S * random.uniform(0.5, 1.0))  # noqa: S311 - jitter only
        else:
            return
