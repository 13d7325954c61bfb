"""`natsctl resume`: syncs paused keys, or a paused controller, again."""

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.names import SomeNamesArgument
from natsctl.cli.operate.find_daemon import NamedOption, controller_name
from natsctl.cli.operate.paused_objects import AllOption, selected_names, show
from natsctl.jetstream.options import NatsOptions
from natsctl.operate.fleet import open_fleet

app = App()


@app.add(
    "natsctl resume greetings/shop",
    "natsctl resume --all -c greetings",
)
@connected
async def resume(
    options: NatsOptions,
    *,
    objects: SomeNamesArgument = None,
    everything: AllOption = False,
    controller: NamedOption = None,
) -> None:
    """Sync paused keys or a paused controller again.

    A key is synced once if it changed while it was paused. A key whose object was deleted while it
    was paused is cleaned up.
    """
    selected = selected_names(objects, "resume", whole=everything)
    async with open_fleet(options) as fleet:
        if everything:
            acted = await fleet.resume_controller(controller_name(controller))
        else:
            acted = await fleet.resume(selected, controller_name(controller))
    show(acted)
