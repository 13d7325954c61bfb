"""`natsctl resume`: syncs paused keys, or a paused controller, again."""

from functools import partial

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
from natsctl.daemon.pauses import paused_controller, resume_controller, resume_object
from natsctl.errors import NotFoundError
from natsctl.jetstream.connection.connection import Connection, connect
from natsctl.jetstream.connection.options import NatsOptions

app = App()


@app.add(
    "natsctl resume shop",
    "natsctl resume --all -c greetings",
)
@connected
async def resume(
    options: NatsOptions,
    *,
    keys: KeysArgument = None,
    everything: AllOption = False,
    controller: NamedOption = None,
    bucket: BucketOption = None,
) -> None:
    """Sync paused keys or a paused controller again.

    A key is synced once if it changed while it was paused. A key whose object was deleted while it
    was paused is cleaned up.
    """
    selected = check_selection(keys, whole=everything)
    async with connect(options) as connection:
        if everything:
            name, _ = await controller_of(connection, controller)
            paused = await resume_controller(connection, name)
            write_line(f"controller {name} {'is not paused' if paused is None else 'resumed'}")
        await for_each_target(
            connection,
            selected,
            partial(_resume, connection),
            controller=controller,
            bucket=bucket,
        )


async def _resume(connection: Connection, target: Target) -> None:
    bucket, key = target.bucket, target.key
    resumption = await resume_object(connection, bucket, key, target.controllers)
    if resumption.pause is not None:
        write_line(f"{bucket}/{key} resumed{'' if resumption.exists else ', without an object'}")
    elif resumption.exists:
        write_line(f"{bucket}/{key} is not paused")
    else:
        raise NotFoundError(f"{bucket} has no {key}")
    for name in target.controllers:
        if await paused_controller(connection, name) is not None:
            write_notice(f"controller {name} is paused: natsctl resume --all -c {name}")
