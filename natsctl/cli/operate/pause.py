"""`natsctl pause`: holds back the syncs of keys or of a whole controller."""

from typing import Annotated

import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.operate.find_daemon import KeysArgument, NamedOption
from natsctl.cli.operate.paused_objects import (
    AllOption,
    BucketOption,
    Target,
    check_selection,
    controller_of,
    for_each_target,
)
from natsctl.cli.output.terminal import write_line, write_notice
from natsctl.daemon.pauses import duration_in, new_pause, pause_controller, pause_object
from natsctl.jetstream.connection.connection import connect
from natsctl.jetstream.connection.options import NatsOptions

app = App()


@app.add(
    "natsctl pause shop --reason 'waits for the new disk'",
    "natsctl pause shop market --for 2h",
    "natsctl pause --all -c greetings",
)
@connected
async def pause(
    options: NatsOptions,
    *,
    keys: KeysArgument = None,
    everything: AllOption = False,
    controller: NamedOption = None,
    bucket: BucketOption = None,
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
    selected = check_selection(keys, whole=everything)
    new = new_pause(reason=reason, duration=None if lasts is None else duration_in(lasts))
    end = f" until {new.until}" if new.until else ""
    async with connect(options) as connection:
        if everything:
            name, runs = await controller_of(connection, controller)
            await pause_controller(connection, name, new)
            write_line(f"controller {name} paused{end}")
            if not runs:
                write_notice(f"no daemon runs {name} now")

        async def pause_one(target: Target) -> None:
            await pause_object(connection, target.bucket, target.key, new)
            write_line(f"{target.bucket}/{target.key} paused{end}")

        await for_each_target(connection, selected, pause_one, controller=controller, bucket=bucket)
