"""Runs the controllers of `natsctl run` in this process."""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from natsctl.cli.daemon.collector import spare_collections
from natsctl.cli.daemon.supervise import PrivateServer, reporting, serve_pages
from natsctl.cli.framework.controllers import load_runnable_controller
from natsctl.controller.controller import Controller
from natsctl.core.coordination.election import Election, elections
from natsctl.core.coordination.installation import installation
from natsctl.core.coordination.member_record import members_of
from natsctl.core.coordination.sharding import Shard, shards
from natsctl.core.coordination.vacancy import Vacancy
from natsctl.core.pausing.held_file import state_directory
from natsctl.core.recording.recordings import Recordings, recording
from natsctl.core.task_group import together
from natsctl.daemon.api.planner import Planner
from natsctl.daemon.api.service import answering, this_process
from natsctl.daemon.api.stand_in import status_stand_in
from natsctl.daemon.cluster import cluster_for
from natsctl.daemon.embedded_server import private_options, while_it_runs
from natsctl.daemon.http.vitals import Vitals
from natsctl.daemon.operator import Operator, Runnable
from natsctl.daemon.processes.child_options import ChildOptions, Loaded, OnReport, Running
from natsctl.daemon.processes.ended_peers import EndedPeers
from natsctl.daemon.schemas import publishing
from natsctl.daemon.settings.settings import ControllerSettings, Settings, TraceSettings
from natsctl.daemon.signals import until_signalled
from natsctl.daemon.stop_limit import StopLimit
from natsctl.errors import StoreError, UsageError
from natsctl.jetstream.bucket.leases import LEASES
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.stores import Nats, connect
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.telemetry.logger import get_logger

if TYPE_CHECKING:  # importing it takes a third of a second
    from natsctl.kubernetes.cluster import Kube

log = get_logger(__name__)

Serve = Callable[[NatsOptions], Coroutine[None, None, None]]
"""Runs the controllers with a NATS connection until they stop."""

ServeWith = Callable[..., Coroutine[None, None, None]]
"""Does the same; also takes the vitals, and `on_stop`, which is called when the stop begins."""


async def run_controllers(
    paths: Sequence[str],
    options: NatsOptions,
    settings: Settings,
    *,
    cluster: KubeOptions | None,
    server: PrivateServer | None,
    place: ChildOptions | None,
    ended_peers: EndedPeers,
    dry_run: bool,
) -> None:
    """Run the controllers of these classes until a signal.

    Args:
        paths: the classes of the controllers.
        options: the connection to NATS.
        settings: the settings of this process.
        cluster: the connection to a cluster.
        server: a private nats-server to run, if there is one.
        place: the options of a process of a supervisor; None for a process without one.
        ended_peers: the processes of the supervisor that have ended.
        dry_run: plan, and write nothing.
    """
    with reporting(place) as report:
        controllers = [load_runnable_controller(path) for path in paths]
        spare_collections()
        report(Loaded())
        if dry_run:
            serve = partial(_serve_plan, controllers, settings.controllers, cluster)
        else:
            serve = partial(
                _serve,
                controllers,
                settings.controllers,
                cluster,
                report=report,
                place=place,
                ended_peers=ended_peers,
            )
        socket = None if place is None else Path(place.socket)
        await _run_daemon(serve, options, settings, server=server, socket=socket)


async def _run_daemon(
    serve: ServeWith,
    options: NatsOptions,
    settings: Settings,
    *,
    server: PrivateServer | None,
    socket: Path | None,
) -> None:
    """Serve until a signal, with a private nats-server if there is one.

    Probes and metrics are served on the address in the settings, or else on the *socket*.
    """
    vitals = Vitals()
    limit = StopLimit(settings.controllers.stop_timeout_s)
    work: Serve = partial(serve, vitals, on_stop=limit.start)
    if server is not None:
        work = partial(_serve_embedded, work, server)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_sending_spans(settings.traces))
        stack.enter_context(vitals.watchdog.watching())
        await until_signalled(
            serve_pages(partial(work, options), vitals, settings.http.listen, socket=socket),
            on_signal=vitals.stop,
            on_caught=limit.start,
        )


async def _serve(
    controllers: Sequence[Controller | Runnable],
    settings: ControllerSettings,
    cluster: KubeOptions | None,
    vitals: Vitals,
    options: NatsOptions,
    *,
    on_stop: Callable[[], None],
    report: OnReport,
    place: ChildOptions | None,
    ended_peers: EndedPeers,
) -> None:
    """Connect, run the controllers, and answer requests about them."""
    async with (
        cluster_for(controllers, cluster, wait=True) as kube,
        connect(options, wait=True) as nats,
    ):
        operator = await _operator(controllers, nats, kube, settings, place, on_stop=on_stop)
        daemon, names = this_process(), [runtime.name for runtime in operator.runtimes]
        answers = answering(
            nats.connection,
            operator.runtimes,
            leads=operator.leads,
            participations=operator.participations,
            histories=operator.histories,
            daemon=daemon,
            planner=Planner(nats=nats, kube=kube, owner_names=settings.owner_names),
        )
        stand_in = status_stand_in(options, daemon, names)
        recordings = Recordings(settings.recordings_max_bytes, everything=settings.record)
        async with AsyncExitStack() as stack:
            shared = tuple(operator.participations.values())
            stack.enter_context(vitals.of(nats.connection, operator.runtimes, shared, kube))
            await stack.enter_async_context(answers)
            stack.enter_context(vitals.watchdog.standing_in(stand_in))
            await stack.enter_async_context(publishing(nats, controllers))
            stack.enter_context(recording(recordings))
            await _run_operator(operator, report, ended_peers)


async def _operator(
    controllers: Sequence[Controller | Runnable],
    nats: Nats,
    kube: "Kube | None",
    settings: ControllerSettings,
    place: ChildOptions | None,
    *,
    on_stop: Callable[[], None],
) -> Operator:
    """Return the operator of the controllers, with leases and files of this installation."""
    installation_id = await _installation_id(nats)
    if installation_id:
        state_directory.set(settings.state_directory / installation_id)
    return Operator(
        controllers,
        nats=nats,
        kube=kube,
        settings=settings,
        election=_election(nats, settings, installation_id),
        shard=_shard(nats, settings, installation_id, place),
        on_stop=on_stop,
    )


async def _serve_plan(
    controllers: Sequence[Controller | Runnable],
    settings: ControllerSettings,
    cluster: KubeOptions | None,
    vitals: Vitals,
    options: NatsOptions,
    *,
    on_stop: Callable[[], None],
) -> None:
    """Connect, plan continuously what the controllers would do, and answer requests about it."""
    async with (
        cluster_for(controllers, cluster, wait=True) as kube,
        connect(options, wait=True) as nats,
    ):
        operator = Operator(
            controllers, nats=nats, kube=kube, settings=settings, on_stop=on_stop, dry_run=True
        )
        with vitals.of(nats.connection, operator.runtimes, cluster=kube):
            async with answering(nats.connection, operator.runtimes, dry_run=True):
                log.info("planning only: nothing is written")
                await operator.run()


async def _run_operator(operator: Operator, report: OnReport, ended_peers: EndedPeers) -> None:
    """Run the controllers, report when all of them work, and take over keys of ended processes."""

    async def report_running() -> None:
        for runtime in operator.runtimes:
            await runtime.synced.wait()
        report(Running())

    async with together() as group:
        others = (
            group.create_task(report_running(), name="report"),
            group.create_task(
                ended_peers.withdraw(operator.shards.values()), name="withdrawal of members"
            ),
        )
        await operator.run()
        for task in others:
            task.cancel()


def _election(
    nats: Nats, settings: ControllerSettings, installation_id: str
) -> Callable[[str, str], Election] | None:
    if not settings.leader_elect:
        return None
    ttl_s = settings.lease_ttl_s
    leases = nats.leases(ttl_s=ttl_s)
    return elections(
        leases,
        ttl_s=ttl_s,
        sharing=lambda name: members_of(leases, name),
        installation=installation_id,
        vacant=Vacancy(nats, leases, ttl_s=ttl_s).is_vacant,
    )


def _shard(
    nats: Nats, settings: ControllerSettings, installation_id: str, place: ChildOptions | None
) -> Callable[[str, str], Shard] | None:
    if not settings.shares_keys:
        return None
    ttl_s = settings.lease_ttl_s
    return shards(
        lambda kind: nats.leases(ttl_s=ttl_s, kind=kind),
        LEASES.bucket,
        ttl_s=ttl_s,
        installation=installation_id,
        vacant=Vacancy(nats, nats.leases(ttl_s=ttl_s), ttl_s=ttl_s).is_vacant,
        identity="" if place is None else place.identity,
        peers=() if place is None else place.peers,
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
        from natsctl.daemon.observe.otlp import sending  # noqa: PLC0415 - imports the SDK
    except ModuleNotFoundError as error:
        raise UsageError(
            f"sending spans needs the extra otlp ({error.name} is missing): "
            "pip install 'natsctl[otlp]'"
        ) from error
    return sending(settings.otlp)


async def _serve_embedded(serve: Serve, server: PrivateServer, options: NatsOptions) -> None:
    """Serve with a private nats-server."""
    async with server as started:
        await while_it_runs(started, serve(private_options(options, started.url)))
