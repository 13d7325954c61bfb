"""`natsctl record`: records every sync of keys."""

from typing import Annotated

import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.names import SomeNamesArgument
from natsctl.cli.operate.find_daemon import (
    NamedOption,
    controller_name,
    controller_with,
    find_daemons,
)
from natsctl.cli.output.terminal import write_line
from natsctl.jetstream.options import NatsOptions
from natsctl.operate.names import parse_names

app = App()


@app.add(
    "natsctl record greetings shop market",
    "natsctl record greetings/shop --stop",
    "natsctl record --stop -c greetings",
)
@connected
async def record(
    options: NatsOptions,
    *,
    objects: SomeNamesArgument = None,
    controller: NamedOption = None,
    stop: Annotated[
        bool,
        typer.Option("--stop", help="Record only failed syncs again; without a key, of all keys"),
    ] = False,
) -> None:
    """Record every sync of keys.

    A daemon keeps the last failed sync of each failing key. For these keys it keeps the last five
    syncs, whether they fail or not, until it ends. natsctl recording fetches a recording.
    """
    names = parse_names(objects or ()) if objects or not stop else []
    by_controller: dict[str, list[str]] = {}
    async with find_daemons(options) as daemons:
        for name in names:
            chosen = await controller_with(daemons, name, controller)
            by_controller.setdefault(chosen, []).append(name.key)
        if not names:
            by_controller[daemons.controller(controller_name(controller))] = []
        for chosen, keys in by_controller.items():
            for answer in await daemons.record(chosen, keys, stop=stop):
                recorded = ", ".join(answer.keys) or "only failed syncs"
                write_line(f"{answer.daemon} records {recorded} of {chosen}")
