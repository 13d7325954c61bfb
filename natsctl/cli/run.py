"""`natsctl run`: the daemon."""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from natsctl.cli.cluster import clustered
from natsctl.cli.command import Command, commands, connected_on, examples
from natsctl.cli.controllers import (
    ControllersOption,
    LogFormat,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
    PortOption,
    ResyncOption,
    WorkersOption,
    runnable_of,
)
from natsctl.cli.loop import daemon_loop
from natsctl.daemon.cluster import cluster_for
from natsctl.daemon.logs import log_to_stderr
from natsctl.daemon.operator import Operator, Runnable
from natsctl.daemon.private import private_server, while_it_runs
from natsctl.daemon.settings import Settings
from natsctl.daemon.signals import end_with_parent, until_signalled
from natsctl.errors import UsageError
from natsctl.kube.options import KubeOptions
from natsctl.kv.options import NatsOptions
from natsctl.kv.stores import connect
from natsctl.runtime import Controller

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl run --embedded --controller controllers.greetings:Greetings",
        "natsctl run -c fleet.sites:Sites -c fleet.routes:Routes -s hub:4222 --creds hub.creds",
        "natsctl run -c fleet.sites:Sites --workers 10 --resync 60 --log-format json",
        "natsctl run -c controllers.webapps:WebApps --kubeconfig lab.yaml --kube-context lab",
    ),
)
@connected_on(daemon_loop)
@clustered
async def run(
    options: NatsOptions,
    *,
    cluster: KubeOptions | None,
    controller: ControllersOption,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="start a private nats-server, and use that")
    ] = False,
    store_dir: Annotated[
        Path | None, typer.Option(help="where it keeps its data; nowhere for long by default")
    ] = None,
    port: PortOption = None,
    workers: WorkersOption = None,
    resync: ResyncOption = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
    with_parent: Annotated[bool, typer.Option("--end-with-parent", hidden=True)] = False,
) -> None:
    """Run controllers until told to stop.

    They start in this order and stop in reverse; when one fails, all stop. The first SIGTERM or
    SIGINT finishes what is under way, the second ends at once. A server that cannot be reached is
    waited for, and so is a cluster, which is looked for where a controller has kinds of one.
    """
    if not embedded and (store_dir is not None or port is not None):
        raise UsageError("--store-dir and --port are about the server that --embedded starts")
    log_to_stderr(log_format.value, log_level.value)
    if with_parent:
        end_with_parent()
    controllers = [runnable_of(path) for path in controller]
    settings = Settings(workers=workers, resync_s=resync)
    serve = partial(_serve, controllers, settings, cluster)
    await until_signalled(
        _beside_server(serve, options, store_dir, port) if embedded else serve(options)
    )


async def _serve(
    controllers: Sequence[Controller | Runnable],
    settings: Settings,
    cluster: KubeOptions | None,
    options: NatsOptions,
) -> None:
    async with (
        cluster_for(controllers, cluster, wait=True) as kube,
        connect(options, wait=True) as nats,
    ):
        await Operator(controllers, nats=nats, kube=kube, settings=settings).run()


async def _beside_server(
    serve: Callable[[NatsOptions], Coroutine[None, None, None]],
    options: NatsOptions,
    store_dir: Path | None,
    port: int | None,
) -> None:
    async with private_server(store_dir, port) as server:
        there = NatsOptions(
            servers=(server.url,),
            connect_timeout_s=options.connect_timeout_s,
            request_timeout_s=options.request_timeout_s,
        )
        await while_it_runs(server, serve(there))
