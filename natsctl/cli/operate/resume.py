"""`natsctl resume`: syncs paused keys, or a paused controller, again."""

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.names import Name, SomeNamesArgument
from natsctl.cli.operate.find_daemon import NamedOption, controller_name, controllers_of
from natsctl.cli.operate.paused_objects import (
    AllOption,
    controller_of,
    for_each_object,
    selected_names,
)
from natsctl.cli.output.terminal import write_line, write_notice
from natsctl.daemon.pauses import paused_controller, resume_controller, resume_object
from natsctl.errors import NotFoundError
from natsctl.jetstream.connection.connection import Connection, connect
from natsctl.jetstream.connection.options import NatsOptions

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
    async with connect(options) as connection:
        if everything:
            name, _ = await controller_of(connection, controller)
            paused = await resume_controller(connection, name)
            write_line(f"controller {name} {'is not paused' if paused is None else 'resumed'}")

        async def resume_one(name: Name) -> None:
            await _resume(connection, name, controller_name(controller))

        await for_each_object(connection, selected, resume_one)


async def _resume(connection: Connection, name: Name, controller: str | None) -> None:
    controllers = await controllers_of(connection, name) if controller is None else [controller]
    resumption = await resume_object(connection, name.bucket, name.key, controllers)
    if resumption.pause is not None:
        write_line(f"{name} resumed{'' if resumption.exists else ', without an object'}")
    elif resumption.exists:
        write_line(f"{name} is not paused")
    else:
        raise NotFoundError(f"{name.bucket} has no {name.key}")
    for one in controllers:
        if await paused_controller(connection, one) is not None:
            write_notice(f"controller {one} is paused: natsctl resume --all -c {one}")
