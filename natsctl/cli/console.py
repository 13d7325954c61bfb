"""`natsctl console`: serves a page that shows controllers and their objects."""

import asyncio
import tempfile
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from html import escape
from pathlib import Path

from natsctl.cli.command import App, StoreOptions, load_runnable_controller
from natsctl.cli.terminal import write_line, write_notice
from natsctl.console.api import Console, MakePlan
from natsctl.console.http import ConsoleAccess, is_loopback, serving
from natsctl.daemon.kinds import cluster_for
from natsctl.daemon.plan import plan
from natsctl.daemon.signals import until_signalled
from natsctl.jetstream.store import connect
from natsctl.model.plans import Plan

app = App()


@app.add(
    "natsctl console",
    "natsctl console --open",
    "natsctl console --port 0 --context hub",
    "natsctl console -c controllers.greetings:Greetings",
    controller="-c M:C | Controller class that the page plans with, instead of a daemon; "
    "repeatable",
    port="PORT>=0<=65535 | Port of the page; 0 for any [default: 8222]",
    bind="ADDRESS | Address or host name to serve the page on",
    opened="--open | Open the page in the browser",
)
async def console(
    stores: StoreOptions,
    *,
    controller: list[str] | None = None,
    port: int | None = None,
    bind: str = "127.0.0.1",
    opened: bool = False,
) -> None:
    """Serve a page that shows controllers and their objects.

    The page shows the answers of the daemons and the objects in NATS, live. It acts with the NATS
    credentials of this command. The printed URL has a secret token; the page answers nobody else.
    Without a daemon, the page shows buckets. The command runs until it is stopped.
    """
    planners = dict(_planner(path, stores) for path in controller or ())

    async def serve() -> None:
        async with connect(stores.nats) as nats:
            page = Console(nats.connection, planners)
            try:
                async with serving(page, ConsoleAccess(bind), bind, port) as url:
                    if not is_loopback(bind):
                        write_notice(f"other machines can reach the console on {bind}, without TLS")
                    write_line(f"the console serves {url}")
                    with _open_in_browser(url) if opened else nullcontext():
                        await asyncio.Event().wait()
            finally:
                await page.close()

    await until_signalled(serve())


def _planner(path: str, stores: StoreOptions) -> tuple[str, MakePlan]:
    """Return the name of the controller at *path*, and a function that plans with its code."""

    async def make(keys: Sequence[str]) -> Plan:
        new = load_runnable_controller(path)
        async with cluster_for([new], stores.cluster) as kube, connect(stores.nats) as nats:
            return await plan(new, nats=nats, kube=kube, keys=keys, owner_names=stores.owner_names)

    return load_runnable_controller(path).name, make


@contextmanager
def _open_in_browser(url: str) -> Iterator[None]:
    """Open *url* in the browser, through a file that lasts as long as the context.

    Only this user can read the file. As an argument of the browser's process, the URL and its
    token would be visible to every user of the machine.
    """
    with tempfile.TemporaryDirectory(prefix="natsctl-console-") as folder:
        file = Path(folder) / "console.html"
        file.touch(mode=0o600)
        file.write_text(f'<meta http-equiv="refresh" content="0; url={escape(url)}">\n')
        # a text browser ends when its user quits, so nothing waits for it
        threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True).start()
        yield
