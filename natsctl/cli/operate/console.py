"""`natsctl console`: serves a page that shows controllers and their objects."""

import asyncio
from contextlib import nullcontext
from importlib.metadata import version as installed
from typing import Annotated

import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.output.terminal import write_line, write_notice
from natsctl.console.access import Access, is_loopback
from natsctl.console.api import Console
from natsctl.console.browser import open_in_browser
from natsctl.console.server import serving
from natsctl.daemon.signals import until_signalled
from natsctl.jetstream.connection.connection import connect
from natsctl.jetstream.connection.options import NatsOptions

app = App()


@app.add(
    "natsctl console",
    "natsctl console --open",
    "natsctl console --port 0 --context hub",
)
@connected
async def console(
    options: NatsOptions,
    *,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Port of the page; 0 selects a free port [default: 8222 if it is free]",
        ),
    ] = None,
    bind: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Address or host name to serve the page on"),
    ] = "127.0.0.1",
    opened: Annotated[bool, typer.Option("--open", help="Open the page in the browser")] = False,
) -> None:
    """Serve a page that shows controllers and their objects.

    The page shows the answers of the daemons and the objects in NATS, live. It acts with the NATS
    credentials of this command. The printed URL has a secret token; the page answers nobody else.
    Without a daemon, the page shows buckets. The command runs until it is stopped.
    """
    await until_signalled(_serve(options, port, bind, opened=opened))


async def _serve(options: NatsOptions, port: int | None, bind: str, *, opened: bool) -> None:
    async with connect(options) as connection:
        console = Console(connection, Access(bind), version=installed("natsctl"), planners={})
        try:
            async with serving(console, bind, port) as url:
                if not is_loopback(bind):
                    write_notice(f"other machines can reach the console on {bind}, without TLS")
                write_line(f"the console serves {url}")
                with open_in_browser(url) if opened else nullcontext():
                    await asyncio.Event().wait()
        finally:
            await console.close()
