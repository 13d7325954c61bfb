"""Runs the controllers of `natsctl run` in this process.

Only a process that runs controllers imports this: it takes 20 MB, which neither the help nor the
parent of `natsctl run --reload` needs.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from natsctl.cli.command import load_runnable_controller
from natsctl.core.coordination.shares import Participation
from natsctl.core.coordination.term import SHARES
from natsctl.core.environment import enter, within
from natsctl.core.installation import installation, is_first_run
from natsctl.core.quarantine import ClaimedKeys
from natsctl.core.record.recordings import Recordings
from natsctl.core.sync import running
from natsctl.daemon.development import private_options, while_it_runs
from natsctl.daemon.http import Vitals, serving
from natsctl.daemon.kinds import cluster_for, clusters_of, publishing
from natsctl.daemon.logs import log_to_stderr, secrets_of
from natsctl.daemon.operator import Operator
from natsctl.daemon.plan import Planner
from natsctl.daemon.service import answering, this_process
from natsctl.daemon.settings.settings import Address, ControllerSettings, Settings
from natsctl.daemon.signals import StopLimit, until_signalled
from natsctl.errors import StoreError, UsageError
from natsctl.jetstream.options import NatsOptions, with_context
from natsctl.jetstream.store import Nats, connect
from natsctl.telemetry.logger import get_logger

if TYPE_CHECKING:  # importing it takes 11 MB
    from natsctl.jetstream.embedded import EmbeddedServer

log = get_logger(__name__)

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


async def run_controllers(
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
    limit = StopLimit(configured.stop_timeout_s, running)
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
