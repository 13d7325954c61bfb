"""`natsctl installation`: shows and changes the id of this NATS system."""

from typing import Annotated

import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.output.printing import Output, OutputOption, write_result
from natsctl.cli.output.terminal import YesOption, confirm, write_line, write_notice
from natsctl.core.coordination import installation as installations
from natsctl.core.coordination.installation import INSTALLATION, Installation
from natsctl.errors import NotFoundError, StoreMissingError
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.connection import Connection, connect
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import KvStore
from natsctl.jetstream.stores import Nats

RESTART = "running daemons still use the former id: restart them"

app = App()


@app.callback()
def installation() -> None:
    """Show or change the id of this NATS system.

    Kubernetes objects have the id in the annotation natsctl.io/installation. natsctl never changes
    or collects the objects of another installation.
    """


@app.add("natsctl installation show", "natsctl installation show -o json | jq -r .id")
@connected
async def show(options: NatsOptions, *, output: OutputOption = Output.TABLE) -> None:
    """Show the id of this NATS system, and the ids that it has adopted."""
    async with connect(options) as connection:
        current = await _current(connection)
    if current is None:
        raise NotFoundError("this NATS system has no id yet: the first daemon creates one")
    write_result(current, output, names=[current.id], table=lambda: _write(current))


@app.add("natsctl installation adopt 1f0c9e77a2b34d58")
@connected
async def adopt(
    options: NatsOptions,
    *,
    lost_id: Annotated[
        str, typer.Argument(help="Id of an installation that does not run any more", metavar="ID")
    ],
    yes: YesOption = False,
) -> None:
    """Take over the objects of a lost installation.

    The objects are adopted when their owners are synced, and collected if their owners do not exist
    here. If the other installation still runs, both change the same objects, and each sync of them
    fails with ErrResourceExists.
    """
    async with connect(options) as connection:
        confirm(f"Take over every object of installation {lost_id}?", yes=yes)
        changed = await installations.adopt(Nats(connection), lost_id)
    _write(changed)
    write_notice(RESTART)


@app.add("natsctl installation set 1f0c9e77a2b34d58", name="set")
@connected
async def set_(
    options: NatsOptions,
    *,
    new_id: Annotated[str, typer.Argument(help="Id of the replaced NATS system", metavar="ID")],
    yes: YesOption = False,
) -> None:
    """Give this NATS system the id of the system that it replaces.

    Use it for a new NATS system that has the primaries of an old system, but not its bucket
    natsctl. Two systems that run with the same id collect each other's objects.
    """
    async with connect(options) as connection:
        current = await _current(connection)
        state = "has no id yet" if current is None else f"is {current.id}"
        confirm(f"This system {state}. Make it installation {new_id}?", yes=yes)
        changed = await installations.assign(Nats(connection), new_id)
    _write(changed)
    write_notice(RESTART)


async def _current(connection: Connection) -> Installation | None:
    store = KvStore(Bucket(connection, INSTALLATION.bucket), INSTALLATION)
    try:
        return await installations.known_installation(store)
    except StoreMissingError:
        return None


def _write(current: Installation) -> None:
    write_line(f"installation {current.id}")
    if current.adopted:
        write_line(f"adopted      {', '.join(current.adopted)}")
