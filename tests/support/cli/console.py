"""A nats-server, a daemon and `natsctl console`, as one user has them."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.cli.natsctl_command import Natsctl, Running
from tests.support.servers.nats_server import NatsServer

SHOPS = "tests.support.controllers.console_shops:Shops"


class Console(NamedTuple):
    """A running console. `url` has the token; `base` is the same address without a path."""

    url: str
    process: Running

    @property
    def base(self) -> str:
        return self.url.partition("/#")[0]

    @property
    def headers(self) -> dict[str, str]:
        """What the page sends with every request."""
        return {"Authorization": f"Bearer {self.url.partition('token=')[2]}"}


class Site(NamedTuple):
    """A nats-server, `natsctl` as its user, a daemon that runs `Shops`, and a console."""

    nats: NatsServer
    natsctl: Natsctl
    daemon: Running
    console: Console


@asynccontextmanager
async def console(natsctl: Natsctl, *options: str) -> AsyncIterator[Console]:
    """Run `natsctl console` during the context."""
    async with natsctl.running("console", "--port", "0", *options) as process:
        await process.logged("token=")
        link = re.search(r"http://\S+token=\S+", process.log)
        assert link, process.log
        yield Console(link[0], process)


@asynccontextmanager
async def site(folder: Path, *, options: Sequence[str] = ()) -> AsyncIterator[Site]:
    """Run a server, a daemon and a console during the context; *options* are the console's."""
    async with NatsServer(folder / "nats") as nats:
        natsctl = Natsctl(folder, nats.url)
        async with natsctl.running("run", "-c", SHOPS) as daemon:
            await daemon.logged("primaries listed, syncing")
            async with console(natsctl, *options) as running:
                yield Site(nats, natsctl, daemon, running)
