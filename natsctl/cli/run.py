"""`natsctl run`: runs controllers as a daemon, and restarts them when their source changes."""

import asyncio
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from natsctl.cli.arguments import ControllersOption, PortOption, with_hook
from natsctl.cli.command import App, LoopFactory, complete, settings, typed_options
from natsctl.daemon.development import private_options, private_server, while_it_runs
from natsctl.daemon.logs import log_to_stderr, secrets_of
from natsctl.daemon.settings.load import Effective
from natsctl.daemon.settings.settings import LogSettings
from natsctl.daemon.signals import end_with_parent, until_signalled
from natsctl.errors import UsageError
from natsctl.jetstream.options import NatsOptions, with_context

if TYPE_CHECKING:
    from natsctl.cli.serve import PrivateServer

try:
    import uvloop
except ImportError:  # uvloop does not support every platform
    loop_factory: LoopFactory = asyncio.new_event_loop
else:
    loop_factory = uvloop.new_event_loop

app = App()


@app.add(
    "natsctl run --embedded --reload -c controllers.greetings:Greetings",
    "natsctl run -c fleet.sites:Sites --shard --listen :8080",
    settings=("controllers", "logs", "http", "traces"),
)
@with_hook
def run(
    *,
    controller: ControllersOption,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Start a private nats-server, and connect to it")
    ] = False,
    store_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Data folder of that server; else a temporary one"),
    ] = None,
    port: PortOption = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a Python file in this folder changes")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Log what the controllers would do, and write nothing")
    ] = False,
    with_parent: Annotated[bool, typer.Option("--end-with-parent", hidden=True)] = False,
    private: Annotated[str | None, typer.Option("--private-server", hidden=True)] = None,
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
        _check_no_server(effective, typed=reload)
    elif store_dir is not None or port is not None:
        raise UsageError("--store-dir and --port need --embedded")
    if reload:
        _reload(effective, controller, embedded, store_dir, port, dry_run=dry_run)
        return
    if with_parent:
        end_with_parent()
    options = private_options(effective.nats, private) if private else effective.nats
    server = private_server(store_dir, port) if embedded else None
    complete(_run(effective, options, controller, server, dry_run=dry_run), loop_factory)


async def _run(
    effective: Effective,
    options: NatsOptions,
    controllers: Sequence[str],
    server: "PrivateServer | None",
    *,
    dry_run: bool,
) -> None:
    configured = effective.settings
    log_to_stderr(configured.logs, secrets_of(with_context(options), configured.cluster))
    from natsctl.cli.serve import run_controllers  # noqa: PLC0415 - takes 20 MB

    await run_controllers(
        controllers,
        options,
        configured,
        cluster=configured.cluster,
        server=server,
        dry_run=dry_run,
    )


def _check_no_server(effective: Effective, *, typed: bool) -> None:
    """Raise `UsageError` if a setting, or only a *typed* one, names a server beside --embedded."""
    for field in ("nats.servers", "nats.context"):
        source = effective.sources.get(field)
        if source is not None and (source.startswith("--") or not typed):
            raise UsageError(
                f"--embedded starts a private nats-server, but {source} names another server: "
                "remove one of them"
            )


def _reload(
    effective: Effective,
    controllers: Sequence[str],
    embedded: bool,  # noqa: FBT001 - one of the options of the command
    store_dir: Path | None,
    port: int | None,
    *,
    dry_run: bool,
) -> None:
    """Run the command as a child, again for each change of a Python file in the current folder.

    If the changed source has an error, the error is shown, and the next change starts it again.
    The data of a private server stays while this process runs.
    """
    if find_spec("watchfiles") is None:
        raise UsageError("--reload needs the extra reload: pip install 'natsctl[reload]'")
    log_to_stderr(LogSettings(level=effective.settings.logs.level))
    words = ["run", "--end-with-parent", *typed_options(effective)]
    words += [word for path in controllers for word in ("--controller", path)]
    words += ["--dry-run"] if dry_run else []
    complete(until_signalled(_restart(words, store_dir, port, embedded=embedded)))


async def _restart(
    words: list[str], store_dir: Path | None, port: int | None, *, embedded: bool
) -> None:
    from natsctl.daemon.development import reloading  # noqa: PLC0415 - an extra

    # without this, Python would run stale bytecode of a file that is saved twice in a second
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    program = [sys.executable, "-m", "natsctl", *words]
    if not embedded:
        await reloading(program, Path.cwd(), environ)
        return
    async with private_server(store_dir, port) as server:
        child = [*program, "--private-server", server.url]
        await while_it_runs(server, reloading(child, Path.cwd(), environ))
