"""`natsctl run`: runs controllers as a daemon, and restarts them when their source changes."""

import asyncio
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from natsctl.cli.command import (
    CONFIG,
    App,
    ControllerClasses,
    LoopFactory,
    complete,
    settings,
)
from natsctl.daemon.development import private_options, private_server, while_it_runs
from natsctl.daemon.logs import log_to_stderr
from natsctl.daemon.settings.settings import Effective, LogSettings, text_of_value
from natsctl.daemon.signals import end_with_parent, until_signalled
from natsctl.errors import UsageError

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
    from natsctl.cli.serve import run_controllers  # noqa: PLC0415 - takes 20 MB

    if with_parent:
        end_with_parent()
    nats, configured = effective.nats, effective.settings
    if private:
        nats = private_options(nats, private)
    server = private_server(store_dir, port) if embedded else None
    work = run_controllers(controller, nats, configured, server=server, dry_run=dry_run)
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
