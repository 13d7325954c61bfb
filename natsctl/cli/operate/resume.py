"""`natsctl resume`: syncs paused keys, or a paused controller, again."""

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.exit_codes import exit_status, exit_with, report_error
from natsctl.cli.operate.find_daemon import NamedOption
from natsctl.cli.operate.paused_objects import (
    AllOption,
    BucketOption,
    KeysArgument,
    Target,
    check_selection,
    controller_of,
    target_of,
)
from natsctl.cli.output.terminal import write_line, write_notice
from natsctl.daemon.pauses import paused_controller, resume_controller, resume_object
from natsctl.errors import NatsctlError, NoDaemonError, NotFoundError
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
    statuses = [0]
    async with connect(options) as connection:
        if everything:
            name, _ = await controller_of(connection, controller)
            paused = await resume_controller(connection, name)
            write_line(f"controller {name} {'is not paused' if paused is None else 'resumed'}")
        for key in selected:
            try:
                target = await target_of(connection, key, controller=controller, bucket=bucket)
                await _resume(connection, target)
            except NoDaemonError:
                raise
            except NatsctlError as error:
                report_error(f"{key}: {error}")
                statuses.append(exit_status(error))
    exit_with(statuses)


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
