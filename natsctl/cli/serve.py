"""Runs the controllers of `natsctl run` in this process."""

import gc
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from natsctl.cli.command import load_runnable_controller
from natsctl.controller.controller import Controller
from natsctl.core.coordination.shares import Participation
from natsctl.core.coordination.term import SHARES
from natsctl.core.environment import enter, within
from natsctl.core.installation import installation, is_first_run
from natsctl.core.quarantine import ClaimedKeys
from natsctl.core.record.recordings import Recordings
from natsctl.daemon.development import private_options, while_it_runs
from natsctl.daemon.http import Vitals, serving
from natsctl.daemon.kinds import cluster_for, clusters_of
from natsctl.daemon.operator import Operator, Runnable
from natsctl.daemon.plan import Planner
from natsctl.daemon.schemas import publishing
from natsctl.daemon.service import answering, this_process
from natsctl.daemon.settings.address import Address
from natsctl.daemon.settings.settings import ControllerSettings, Settings, TraceSettings
from natsctl.daemon.signals import StopLimit, until_signalled
from natsctl.errors import StoreError, UsageError
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import Nats, connect
from natsctl.kubernetes.options import KubeOptions
from natsctl.telemetry.logger import get_logger

if TYPE_CHECKING:  # importing them takes a third of a second
    from natsctl.jetstream.embedded import EmbeddedServer
    from natsctl.kubernetes.cluster import Kube

YOUNG_MAX = 10_000  # new objects before a collection of them; Python's default is 700 or 2,000


def spare_collections() -> None:
    """Exempt all present objects from collections, and collect new objects less often.

    The present objects last as long as the process. A full collection visits some 90,000 of them,
    which takes 50 ms, in which the event loop stands still. A collection of new objects visits
    those that are in use, and frees little: a sync leaves no cycles behind. Each takes 2 ms at
    most. If the program has turned automatic collections off, they stay off.
    """
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if young:
        gc.set_threshold(max(young, YOUNG_MAX), *older)


PrivateServer = AbstractAsyncContextManager["EmbeddedServer"]

log = get_logger(__name__)


async def run_controllers(
    paths: Sequence[str],
    options: NatsOptions,
    settings: Settings,
    *,
    server: PrivateServer | None,
    dry_run: bool,
) -> None:
    """Run the controllers of the classes at these paths until a signal.

    *server* is a private nats-server to run. With *dry_run*, the controllers plan, and write
    nothing.
    """
    vitals = Vitals()
    limit = StopLimit(settings.controllers.stop_timeout_s)
    controllers = [load_runnable_controller(path) for path in paths]
    spare_collections()
    daemon = _Daemon(
        controllers=controllers,
        settings=settings.controllers,
        cluster=settings.cluster,
        vitals=vitals,
        on_stop=limit.start,
    )
    serve = daemon.plan if dry_run else daemon.work

    async def work() -> None:
        async with AsyncExitStack() as stack:
            if settings.http.listen is not None:
                stack.enter_context(serving(Address.parse(settings.http.listen), vitals))
            if server is None:
                await serve(options)
            else:
                started = await stack.enter_async_context(server)
                await while_it_runs(started, serve(private_options(options, started.url)))

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_sending_spans(settings.traces))
        stack.enter_context(vitals.watchdog.watching())
        await until_signalled(work(), on_signal=vitals.stop, on_caught=limit.start)


@dataclass(frozen=True, kw_only=True)
class _Daemon:
    """The controllers of this process, and how they run; `on_stop` is called when a stop begins."""

    controllers: Sequence[Controller | Runnable]
    settings: ControllerSettings
    cluster: KubeOptions | None
    vitals: Vitals
    on_stop: Callable[[], None]

    async def work(self, options: NatsOptions) -> None:
        """Connect, run the controllers, and answer requests about them."""
        async with self._connected(options) as (kube, nats), AsyncExitStack() as stack:
            clusters = await clusters_of(self.controllers, kube, wait=True)
            operator = await self._operator(nats, kube, clusters)
            runtimes, participations = operator.runtimes, operator.participations
            answers = answering(
                nats.connection,
                runtimes,
                participations=participations,
                daemon=this_process(),
                clusters=clusters,
                planner=Planner(nats=nats, kube=kube, owner_names=self.settings.owner_names),
            )
            recordings = Recordings(
                self.settings.recordings_max_bytes, everything=self.settings.record
            )
            shared = tuple(participations.values())
            stack.enter_context(self.vitals.of(nats.connection, runtimes, shared, kube))
            await stack.enter_async_context(answers)
            await stack.enter_async_context(publishing(nats, self.controllers))
            stack.enter_context(within(recordings=recordings))
            await operator.run()

    async def plan(self, options: NatsOptions) -> None:
        """Connect, plan continuously what the controllers would do, and answer requests."""
        async with self._connected(options) as (kube, nats):
            operator = Operator(
                self.controllers,
                nats=nats,
                kube=kube,
                settings=self.settings,
                on_stop=self.on_stop,
                dry_run=True,
            )
            with self.vitals.of(nats.connection, operator.runtimes, cluster=kube):
                async with answering(nats.connection, operator.runtimes, dry_run=True):
                    log.info("planning only: nothing is written")
                    await operator.run()

    @asynccontextmanager
    async def _connected(self, options: NatsOptions) -> "AsyncIterator[tuple[Kube | None, Nats]]":
        async with (
            cluster_for(self.controllers, self.cluster, wait=True) as kube,
            connect(options, wait=True) as nats,
        ):
            yield kube, nats

    async def _operator(
        self, nats: Nats, kube: "Kube | None", clusters: Mapping[str, str]
    ) -> Operator:
        """Return the operator of the controllers, with leases and files of this installation."""
        installation_id = await _installation_id(nats)
        if installation_id:
            enter(claims=ClaimedKeys(self.settings.state_directory / installation_id))
        return Operator(
            self.controllers,
            nats=nats,
            kube=kube,
            settings=self.settings,
            participate=_participations(nats, self.settings, installation_id, clusters),
            on_stop=self.on_stop,
        )


def _participations(
    nats: Nats, settings: ControllerSettings, installation_id: str, clusters: Mapping[str, str]
) -> Callable[[str, str], Participation] | None:
    if not settings.leader_elect and not settings.shard:
        return None
    ttl_s = settings.lease_ttl_s
    return partial(
        Participation,
        lambda kind: nats.leases(ttl_s=ttl_s, kind=kind),
        count=SHARES if settings.shard else 1,
        ttl_s=ttl_s,
        installation=installation_id,
        clusters=clusters,
        first_run=partial(is_first_run, nats),
    )


async def _installation_id(nats: Nats) -> str:
    """Return the installation id for leases and local files; empty if it is unavailable."""
    try:
        return (await installation(nats)).id
    except StoreError as error:
        log.warning("cannot read the installation id, leases do not name it", error=error)
        return ""


def _sending_spans(settings: TraceSettings) -> AbstractAsyncContextManager[None]:
    """Send spans to the collector in the settings, if there is one.

    Raises `UsageError` if the extra `otlp` is not installed.
    """
    if settings.otlp is None:
        return nullcontext()
    try:
        from natsctl.daemon.otlp import sending  # noqa: PLC0415 - imports the SDK
    except ModuleNotFoundError as error:
        raise UsageError(
            f"sending spans needs the extra otlp ({error.name} is missing): "
            "pip install 'natsctl[otlp]'"
        ) from error
    return sending(settings.otlp)
