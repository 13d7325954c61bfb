"""`natsctl pause`: holds back the syncs of keys or of a whole controller."""

from typing import Annotated

import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.names import SomeNamesArgument
from natsctl.cli.operate.find_daemon import NamedOption, controller_name
from natsctl.cli.operate.paused_objects import AllOption, selected_names, show
from natsctl.errors import UsageError
from natsctl.jetstream.options import NatsOptions
from natsctl.operate.fleet import open_fleet
from natsctl.operate.pauses import duration_in, new_pause

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
    async with open_fleet(options) as fleet:
        if everything:
            acted = await fleet.pause_controller(controller_name(controller), new)
        else:
            acted = await fleet.pause(selected, new)
    show(acted)
