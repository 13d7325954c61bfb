"""`natsctl pause`: holds back the syncs of keys or of a whole controller."""

from typing import Annotated

import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.names import Name, SomeNamesArgument
from natsctl.cli.operate.find_daemon import NamedOption
from natsctl.cli.operate.paused_objects import (
    AllOption,
    controller_of,
    for_each_object,
    selected_names,
)
from natsctl.cli.output.terminal import write_line, write_notice
from natsctl.daemon.pauses import duration_in, new_pause, pause_controller, pause_object
from natsctl.errors import UsageError
from natsctl.jetstream.connection.connection import connect
from natsctl.jetstream.connection.options import NatsOptions

app = App()


@app.add(
    "natsctl pause greetings/shop --reason 'waits for the new disk'",
    "natsctl pause greetings shop market --for 2h",
    "natsctl pause --all -c greetings",
)
@connected
async def pause(
    options: NatsOptions,
    *,
    objects: SomeNamesArgument = None,
    everything: AllOption = False,
    controller: NamedOption = None,
    reason: Annotated[
        str, typer.Option("--reason", help="The reason, for people", metavar="TEXT")
    ] = "",
    lasts: Annotated[
        str | None,
        typer.Option("--for", help="Resume after this time, such as 30m, 2h or 1d", metavar="TIME"),
    ] = None,
) -> None:
    """Hold back the syncs of keys or of a controller.

    A paused key is neither synced nor garbage collected. Its changes are remembered, and it is
    synced once when it is resumed. A sync under way goes on to its end. The pause survives
    restarts: it is the annotation natsctl.io/paused of the object, or a record of the controller.
    """
    selected = selected_names(objects, "pause", whole=everything)
    if selected and controller is not None:
        raise UsageError(
            "-c needs --all: the pause of an object holds for every controller that syncs it"
        )
    new = new_pause(reason=reason, duration=None if lasts is None else duration_in(lasts))
    end = f" until {new.until}" if new.until else ""
    async with connect(options) as connection:
        if everything:
            name, runs = await controller_of(connection, controller)
            await pause_controller(connection, name, new)
            write_line(f"controller {name} paused{end}")
            if not runs:
                write_notice(f"no daemon runs {name} now")

        async def pause_one(name: Name) -> None:
            await pause_object(connection, name.bucket, name.key, new)
            write_line(f"{name} paused{end}")

        await for_each_object(connection, selected, pause_one)
