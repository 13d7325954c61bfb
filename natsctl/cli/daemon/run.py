"""`natsctl run`: runs controllers as a daemon."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from natsctl.cli.daemon.supervise import PrivateServer, process_count, reporting, supervise
from natsctl.cli.framework.command import App, LoopFactory, connected_on
from natsctl.cli.framework.controllers import (
    ControllersOption,
    PortOption,
    load_runnable_controller,
)
from natsctl.cli.framework.options import with_cluster, with_options
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
from natsctl.daemon.embedded_server import private_server, while_it_runs
from natsctl.daemon.http.vitals import Vitals
from natsctl.daemon.observe.logs import log_to_stderr, secrets_of
from natsctl.daemon.operator import Operator, Runnable
from natsctl.daemon.processes.child_options import ChildOptions, Loaded, OnReport, Running
from natsctl.daemon.processes.ended_peers import EndedPeers
from natsctl.daemon.schemas import publishing
from natsctl.daemon.settings.address import Address
from natsctl.daemon.settings.load import Effective
from natsctl.daemon.settings.settings import ControllerSettings, Settings, TraceSettings
from natsctl.daemon.signals import end_with_parent, until_signalled
from natsctl.daemon.stop_limit import StopLimit
from natsctl.errors import StoreError, UsageError
from natsctl.jetstream.bucket.leases import LEASES
from natsctl.jetstream.connection.nats_contexts import with_context
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.stores import Nats, connect
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.telemetry.logger import get_logger

try:
    import uvloop
except ImportError:  # uvloop does not support every platform
    loop_factory: LoopFactory = asyncio.new_event_loop
else:
    loop_factory = uvloop.new_event_loop

log = get_logger(__name__)

app = App()

Serve = Callable[[NatsOptions], Coroutine[None, None, None]]
"""Runs the controllers with a NATS connection until they stop."""

ServeWith = Callable[..., Coroutine[None, None, None]]
"""Does the same; also takes the vitals, and `on_stop`, which is called when the stop begins."""


@app.add(
    "natsctl run --embedded --controller controllers.greetings:Greetings",
    "natsctl run -c fleet.sites:Sites -c fleet.routes:Routes -s hub:4222 --creds hub.creds",
    "natsctl run -c fleet.sites:Sites --workers 10 --resync 60 --log-format json",
    "natsctl run -c controllers.webapps:WebApps --kubeconfig lab.yaml --kube-context lab",
    "natsctl run -c fleet.sites:Sites --listen :8080 --otlp http://collector:4318",
    "natsctl run -c fleet.sites:Sites --leader-elect --lease-ttl 10",
    "natsctl run -c fleet.sites:Sites --shard",
    "natsctl run -c fleet.sites:Sites --dry-run",
    "natsctl run -c fleet.sites:Sites --processes auto",
)
@connected_on(loop_factory)
@with_cluster
@with_options(
    *("effective", "controllers", "logs", "http", "traces"), value=lambda effective: effective
)
async def run(
    options: NatsOptions,
    *,
    cluster: KubeOptions | None,
    effective: Effective,
    controller: ControllersOption,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Start a private nats-server, and connect to it")
    ] = False,
    store_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Data folder of the private nats-server [default: a temporary folder]",
        ),
    ] = None,
    port: PortOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Log what the controllers would do, and write nothing")
    ] = False,
    with_parent: Annotated[bool, typer.Option("--end-with-parent", hidden=True)] = False,
    child: Annotated[str | None, typer.Option("--child", hidden=True)] = None,
) -> None:
    """Run controllers until they are stopped.

    The controllers start in the given order and stop in reverse order. If one fails, all stop. The
    first SIGTERM or SIGINT finishes the syncs in progress, the second ends the process at once. A
    stop takes at most --stop-timeout plus ten seconds; after that, the process exits with status 1.
    The command waits for a NATS server or a Kubernetes cluster that cannot be reached. It connects
    to a cluster only if a controller has Kubernetes kinds.

    With --leader-elect, one of several processes works on each controller, and the others stand
    by. With --shard, the processes share the keys of each controller. With --processes, this
    command starts several processes that share the keys, restarts a process that dies, and serves
    the metrics of all.

    With --dry-run, the controllers plan continuously, beside any other daemons. Each change
    that a controller would make is logged and counted. The controllers write nothing, and neither
    lead nor share keys.
    """
    effective.settings.check()
    if embedded:
        _check_no_server(effective)
    elif store_dir is not None or port is not None:
        raise UsageError("--store-dir and --port need --embedded")
    place = None if child is None else ChildOptions.parse(child)
    ended_peers = EndedPeers()
    if with_parent or place is not None:
        end_with_parent(ended_peers.receive)
    if with_parent or (place is not None and place.private):
        options = _private(options, *options.servers)
    settings = effective.settings if place is None else place.applied(effective.settings)
    number = None if place is None else place.number
    log_to_stderr(settings.logs, secrets_of(with_context(options), cluster), process=number)
    server = private_server(store_dir, port) if embedded else None
    count = 1 if dry_run else process_count(settings.controllers)
    if count > 1:
        await supervise(effective, controller, count, server, private=with_parent)
        return
    with reporting(place) as report:
        controllers = [load_runnable_controller(path) for path in controller]
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
    listen = settings.http.listen
    address = socket if listen is None else Address.parse(listen)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_sending_spans(settings.traces))
        stack.enter_context(vitals.watchdog.watching())
        await until_signalled(
            _serve_http(work, options, vitals, address),
            on_signal=vitals.stop,
            on_caught=limit.start,
        )


def _check_no_server(effective: Effective) -> None:
    """Raise `UsageError` if a setting names a NATS server in addition to `--embedded`."""
    for field in ("nats.servers", "nats.context"):
        source = effective.sources.get(field)
        if source is not None:
            raise UsageError(
                f"--embedded starts a private nats-server, but {source} names another server: "
                "remove one of them"
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
        installation_id = await _installation_id(nats)
        if installation_id:
            state_directory.set(settings.state_directory / installation_id)
        operator = Operator(
            controllers,
            nats=nats,
            kube=kube,
            settings=settings,
            election=_election(nats, settings, installation_id),
            shard=_shard(nats, settings, installation_id, place),
            on_stop=on_stop,
        )
        elected, shared = tuple(operator.elections.values()), tuple(operator.shards.values())
        with vitals.of(nats.connection, operator.runtimes, elected, kube, shared):
            daemon = this_process()
            names = [runtime.name for runtime in operator.runtimes]
            async with answering(
                nats.connection,
                operator.runtimes,
                leads=operator.leads,
                shards=operator.shards,
                elections=operator.elections,
                daemon=daemon,
                planner=Planner(nats=nats, kube=kube, owner_names=settings.owner_names),
            ):
                with vitals.watchdog.standing_in(status_stand_in(options, daemon, names)):
                    recordings = Recordings(
                        settings.recordings_max_bytes, everything=settings.record
                    )
                    async with publishing(nats, controllers):
                        with recording(recordings):
                            await _run_operator(operator, report, ended_peers)


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
        with vitals.of(nats.connection, operator.runtimes, (), kube, ()):
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


async def _serve_http(
    serve: Serve, options: NatsOptions, vitals: Vitals, address: Address | Path | None
) -> None:
    """Serve, and answer probes and scrapes over HTTP if there is an address."""
    if address is None:
        await serve(options)
        return
    from natsctl.daemon.http import server  # noqa: PLC0415 - importing it takes 0.2 s

    if isinstance(address, Path):
        async with server.serving_on_socket(address, vitals):
            await serve(options)
    else:
        async with server.serving(address, vitals):
            await serve(options)


async def _serve_embedded(serve: Serve, server: PrivateServer, options: NatsOptions) -> None:
    """Serve with a private nats-server."""
    async with server as started:
        await while_it_runs(started, serve(_private(options, started.url)))


def _private(options: NatsOptions, *servers: str) -> NatsOptions:
    """Return options for a private server: the timeouts stay, the other options do not apply."""
    return NatsOptions(
        servers=servers,
        connect_timeout_s=options.connect_timeout_s,
        request_timeout_s=options.request_timeout_s,
    )
