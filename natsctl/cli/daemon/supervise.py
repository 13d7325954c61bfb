"""Runs the controllers of `natsctl run --processes` in several processes."""

import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from natsctl.cli.framework.exit_codes import error_texts, exit_status, write_error
from natsctl.cli.framework.options import typed_options
from natsctl.daemon.embedded_server import while_it_runs
from natsctl.daemon.observe.log_relay import LogRelay
from natsctl.daemon.processes.child import Command
from natsctl.daemon.processes.child_options import ChildFailed, ChildOptions, OnReport, ReportPipe
from natsctl.daemon.processes.combined_pages import CombinedPages
from natsctl.daemon.processes.cores import usable_cores
from natsctl.daemon.processes.supervisor import ProcessError, Supervisor
from natsctl.daemon.settings.address import Address
from natsctl.daemon.settings.load import Effective
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.daemon.signals import until_signalled

if TYPE_CHECKING:
    from natsctl.daemon.http.server import Pages
    from natsctl.jetstream.embedded import EmbeddedServer

PrivateServer = AbstractAsyncContextManager["EmbeddedServer"]


def process_count(settings: ControllerSettings) -> int:
    """Return the number of processes that the settings ask for."""
    return usable_cores() if settings.processes == "auto" else settings.processes


async def supervise(
    effective: Effective,
    controllers: Sequence[str],
    count: int,
    server: PrivateServer | None,
    *,
    private: bool,
) -> None:
    """Run the controllers in *count* processes until a signal.

    *server* is the private nats-server that this process runs. *private* is whether another process
    runs one, whose URL was typed.

    Raises `typer.Exit` with the status of a process that ends all, after its error was written.
    """
    settings = effective.settings
    words = ["run", *typed_options(effective)]
    for path in controllers:
        words += ["--controller", path]
    relay = LogRelay(settings.logs)
    listen, stop_timeout_s = settings.http.listen, settings.controllers.stop_timeout_s
    supervisor = Supervisor(count, relay, stop_timeout_s=stop_timeout_s, serves=listen is not None)
    pages = CombinedPages(supervisor.states)

    async def work() -> None:
        if server is None:
            await supervisor.run(_command(words), private=private)
            return
        async with server as started:
            command = _command([*words, "--server", started.url])
            await while_it_runs(started, supervisor.run(command, private=True))

    try:
        await until_signalled(serve_pages(work, pages, listen), on_signal=pages.stop)
    except ProcessError as error:
        for text in error.texts:
            write_error(text)
        raise typer.Exit(error.status) from None


@contextmanager
def reporting(place: ChildOptions | None) -> Iterator[OnReport]:
    """Yield the function that sends reports to the supervisor, if there is one.

    An error is reported instead of raised, and raises `typer.Exit` with its status.
    """
    if place is None:
        yield lambda _report: None
        return
    pipe = ReportPipe(place.reports)
    try:
        yield pipe.send
    except typer.Exit:
        raise
    except Exception as error:  # noqa: BLE001 - the supervisor writes it
        status = exit_status(error)
        pipe.send(ChildFailed(status, tuple(error_texts(error))))
        raise typer.Exit(status) from None


def _command(words: Sequence[str]) -> Command:
    return lambda options: [sys.executable, "-m", "natsctl", *words, "--child", options.text()]


async def serve_pages(
    work: Callable[[], Coroutine[None, None, None]],
    pages: "Pages",
    listen: str | None,
    *,
    socket: Path | None = None,
) -> None:
    """Work, and answer probes and scrapes over HTTP on an address or else on a Unix socket."""
    if listen is None and socket is None:
        await work()
        return
    from natsctl.daemon.http import server  # noqa: PLC0415 - importing it takes 0.2 s

    async with AsyncExitStack() as stack:
        if listen is not None:
            await stack.enter_async_context(server.serving(Address.parse(listen), pages))
        elif socket is not None:
            await stack.enter_async_context(server.serving_on_socket(socket, pages))
        await work()
