"""`natsctl run`: runs controllers as a daemon."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from natsctl.cli.framework.command import App, LoopFactory, connected
from natsctl.cli.framework.controller_options import ControllersOption, PortOption
from natsctl.cli.framework.hook_options import with_hook
from natsctl.cli.framework.options import with_cluster, with_options
from natsctl.daemon.embedded_server import private_options, private_server
from natsctl.daemon.observe.logs import log_to_stderr, secrets_of
from natsctl.daemon.settings.load import Effective
from natsctl.daemon.signals import end_with_parent
from natsctl.errors import UsageError
from natsctl.jetstream.options import NatsOptions, with_context
from natsctl.kubernetes.options import KubeOptions

try:
    import uvloop
except ImportError:  # uvloop does not support every platform
    loop_factory: LoopFactory = asyncio.new_event_loop
else:
    loop_factory = uvloop.new_event_loop

app = App()


@app.add(
    "natsctl run --embedded --controller controllers.greetings:Greetings",
    "natsctl run -c fleet.sites:Sites -c fleet.routes:Routes -s hub:4222 --creds hub.creds",
    "natsctl run -c fleet.sites:Sites --workers 10 --resync 60 --log-format json",
    "natsctl run -c controllers.webapps:WebApps --kubeconfig lab.yaml --kube-context lab",
    "natsctl run -c fleet.sites:Sites --listen :8080 --otlp http://collector:4318",
    "natsctl run -c fleet.sites:Sites --leader-elect --lease-ttl 10",
    "natsctl run -c fleet.sites:Sites --shard",
    "natsctl run -c fleet.sites:Sites --dry-run",
    "natsctl run --hook shops.sync --primary shops --secondary routes",
)
@with_hook
@partial(connected, loop_factory=loop_factory)
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
) -> None:
    """Run controllers until they are stopped.

    The controllers start in the given order and stop in reverse order. If one fails, all stop. The
    first SIGTERM or SIGINT finishes the syncs in progress, the second ends the process at once. A
    stop takes at most --stop-timeout plus ten seconds; after that, the process exits with status 1.
    The command waits for a NATS server or a Kubernetes cluster that cannot be reached. It connects
    to a cluster only if a controller has Kubernetes kinds.

    With --leader-elect, one of several processes works on each controller, and the others stand
    by. With --shard, the processes share the keys of each controller.

    With --dry-run, the controllers plan continuously, beside any other daemons. Each change
    that a controller would make is logged and counted. The controllers write nothing, and neither
    lead nor share keys.
    """
    effective.settings.check()
    if embedded or with_parent:  # a private server is none that `nats context select` knows
        effective = effective.without_selection()
        options = effective.nats
    if embedded:
        _check_no_server(effective)
    elif store_dir is not None or port is not None:
        raise UsageError("--store-dir and --port need --embedded")
    if with_parent:
        end_with_parent()
        options = private_options(options, *options.servers)
    settings = effective.settings
    log_to_stderr(settings.logs, secrets_of(with_context(options), cluster))
    from natsctl.cli.daemon.serve import run_controllers  # noqa: PLC0415 - takes 20 MB

    await run_controllers(
        controller,
        options,
        settings,
        cluster=cluster,
        server=private_server(store_dir, port) if embedded else None,
        dry_run=dry_run,
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
