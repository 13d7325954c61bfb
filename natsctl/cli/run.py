"""`natsctl run`: runs controllers as a daemon, and restarts them when their source changes."""

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from natsctl.cli.command import (
    CONFIG,
    App,
    ControllerClasses,
    LoopFactory,
    complete,
    load_runnable_controller,
    settings,
)
from natsctl.core.coordination.shares import Participation
from natsctl.core.coordination.term import SHARES
from natsctl.core.environment import enter, within
from natsctl.core.installation import installation, is_first_run
from natsctl.core.quarantine import ClaimedKeys
from natsctl.core.record.recordings import Recordings
from natsctl.daemon.development import private_options, private_server, while_it_runs
from natsctl.daemon.http import Vitals, serving
from natsctl.daemon.kinds import cluster_for, clusters_of, publishing
from natsctl.daemon.logs import log_to_stderr, secrets_of
from natsctl.daemon.operator import Operator
from natsctl.daemon.plan import Planner
from natsctl.daemon.service import answering, this_process
from natsctl.daemon.settings.settings import (
    Address,
    ControllerSettings,
    Effective,
    LogSettings,
    Settings,
    text_of_value,
)
from natsctl.daemon.signals import StopLimit, end_with_parent, until_signalled
from natsctl.errors import StoreError, UsageError
from natsctl.jetstream.options import NatsOptions, with_context
from natsctl.jetstream.store import Nats, connect
from natsctl.telemetry.logger import get_logger

if TYPE_CHECKING:  # importing it takes 11 MB
    from natsctl.jetstream.embedded import EmbeddedServer

try:
    import uvloop
except ImportError:  # uvloop does not support every platform
    loop_factory: LoopFactory = asyncio.new_event_loop
else:
    loop_factory = uvloop.new_event_loop

app = App()
log = get_logger(__name__)

YOUNG_MAX = 10_000  # new objects before a collection of them; Python's default is 700 or 2,000


@app.add(
    "natsctl run --embedded --reload -c controllers.greetings:Greetings",
    "natsctl run -c fleet.sites:Sites --shard --listen :8080",
    sections=("controllers", "logs", "http", "traces"),
    hooks=True,
    embedded="Start a private nats-server, and connect to it",
    store_dir="DIR | Data folder of that server; else a temporary one",
    port="PORT>=0<=65535 | Port of that server; 0 for any [default: 4222]",
    reload="Restart when a Python file in this folder changes",
    dry_run="Log what the controllers would do, and write nothing",
    with_parent="",
    private="",
)
def run(
    *,
    controller: ControllerClasses,
    embedded: bool = False,
    store_dir: Path | None = None,
    port: int | None = None,
    reload: bool = False,
    dry_run: bool = False,
    with_parent: bool = False,
    private: str | None = None,
) -> None:
    """Run controllers until they are stopped.

    SIGTERM finishes the syncs in progress; a second one ends the process. natsctl options lists all
    settings, such as time limits and the connection.
    """
    effective = settings()
    effective.settings.check()
    if embedded or private:  # a private server is none that `nats context select` knows
        effective = effective.without_selection()
    if embedded:
        for field in ("nats.servers", "nats.context"):
            source = effective.sources.get(field)
            if source is not None and (source.startswith("--") or not reload):
                raise UsageError(
                    f"--embedded starts a private nats-server, but {source} names another server: "
                    "remove one of them"
                )
    elif store_dir is not None or port is not None:
        raise UsageError("--store-dir and --port need --embedded")
    if reload:
        if find_spec("watchfiles") is None:
            raise UsageError("--reload needs the extra reload: pip install 'natsctl[reload]'")
        log_to_stderr(LogSettings(level=effective.settings.logs.level))
        words = ["run", "--with-parent", *_typed(effective)]
        words += [word for path in controller for word in ("--controller", path)]
        words += ["--dry-run"] if dry_run else []
        complete(until_signalled(_restart(words, store_dir, port, embedded=embedded)))
        return
    if with_parent:
        end_with_parent()
    nats, configured = effective.nats, effective.settings
    if private:
        nats = private_options(nats, private)
    server = private_server(store_dir, port) if embedded else None
    work = _run_controllers(controller, nats, configured, server=server, dry_run=dry_run)
    complete(work, loop_factory)


def _typed(effective: Effective) -> list[str]:
    """Return the options that were typed, for a process with the same environment."""
    words = [] if effective.file is None else [f"--{CONFIG}", str(effective.file)]
    for name, source in effective.sources.items():
        if source.startswith("--"):
            value = effective.value(name)
            words += [source] if isinstance(value, bool) else [source, text_of_value(value)]
    return words


async def _restart(
    words: list[str], store_dir: Path | None, port: int | None, *, embedded: bool
) -> None:
    """Run the command as a child, again for each change of a Python file in the current folder.

    If the changed source has an error, the error is shown, and the next change starts it again.
    The data of a private server stays while this process runs.
    """
    from natsctl.daemon.development import reloading  # noqa: PLC0415 - an extra

    # without this, Python would run stale bytecode of a file that is saved twice in a second
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    program = [sys.executable, "-m", "natsctl", *words]
    if not embedded:
        await reloading(program, Path.cwd(), environ)
        return
    async with private_server(store_dir, port) as server:
        child = [*program, "--private", server.url]
        await while_it_runs(server, reloading(child, Path.cwd(), environ))


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


async def _run_controllers(
    paths: Sequence[str],
    options: NatsOptions,
    settings: Settings,
    *,
    server: AbstractAsyncContextManager["EmbeddedServer"] | None,
    dry_run: bool,
) -> None:
    """Run controllers until a signal, with a private *server* if there is one."""
    log_to_stderr(settings.logs, secrets_of(with_context(options), settings.cluster))
    vitals, configured = Vitals(), settings.controllers
    limit = StopLimit(configured.stop_timeout_s)
    controllers = [load_runnable_controller(path) for path in paths]
    spare_collections()

    async def serve(options: NatsOptions) -> None:
        async with (
            cluster_for(controllers, settings.cluster, wait=True) as kube,
            connect(options, wait=True) as nats,
        ):
            operated = partial(
                Operator,
                controllers,
                nats=nats,
                kube=kube,
                settings=configured,
                on_stop=limit.start,
            )
            if dry_run:
                operator = operated(dry_run=True)
                with vitals.of(nats.connection, operator.runtimes, cluster=kube):
                    async with answering(nats.connection, operator.runtimes, dry_run=True):
                        log.info("planning only: nothing is written")
                        await operator.run()
                return
            clusters = await clusters_of(controllers, kube, wait=True)
            participate = await _participations(nats, configured, clusters)
            operator = operated(participate=participate)
            runtimes, shared = operator.runtimes, operator.participations
            recordings = Recordings(configured.recordings_max_bytes, everything=configured.record)
            answers = answering(
                nats.connection,
                runtimes,
                participations=shared,
                daemon=this_process(),
                clusters=clusters,
                planner=Planner(nats=nats, kube=kube, owner_names=configured.owner_names),
            )
            async with AsyncExitStack() as stack:
                members = tuple(shared.values())
                stack.enter_context(vitals.of(nats.connection, runtimes, members, kube))
                await stack.enter_async_context(answers)
                await stack.enter_async_context(publishing(nats, controllers))
                stack.enter_context(within(recordings=recordings))
                await operator.run()

    async def run() -> None:
        async with AsyncExitStack() as stack:
            if settings.http.listen is not None:
                stack.enter_context(serving(Address.parse(settings.http.listen), vitals))
            if server is None:
                await serve(options)
            else:
                started = await stack.enter_async_context(server)
                await while_it_runs(started, serve(private_options(options, started.url)))

    async with AsyncExitStack() as stack:
        if settings.traces.otlp is not None:
            try:
                from natsctl.daemon.otlp import sending  # noqa: PLC0415 - imports the SDK
            except ModuleNotFoundError as error:
                raise UsageError(
                    f"sending spans needs the extra otlp ({error.name} is missing): "
                    "pip install 'natsctl[otlp]'"
                ) from error
            await stack.enter_async_context(sending(settings.traces.otlp))
        stack.enter_context(vitals.watchdog.watching())
        await until_signalled(run(), on_signal=vitals.stop, on_caught=limit.start)


async def _participations(
    nats: Nats, settings: ControllerSettings, clusters: Mapping[str, str]
) -> Callable[[str, str], Participation] | None:
    """Return how controllers take part in an election or in sharing keys; None if they don't.

    Without an installation id, no keys are claimed in files, and leases do not name it.
    """
    try:
        installation_id = (await installation(nats)).id
        enter(claims=ClaimedKeys(settings.state_directory / installation_id))
    except StoreError as error:
        log.warning("cannot read the installation id, leases do not name it", error=error)
        installation_id = ""
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
