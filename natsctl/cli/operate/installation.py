"""`natsctl installation`: the id of this NATS system, and of those that it has taken over."""

from typing import Annotated

import typer

from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.output.printing import Output, OutputOption, line, write_found
from natsctl.cli.output.terminal import confirm, say
from natsctl.core.coordination.installation import INSTALLATION, Installation, known_installation
from natsctl.core.coordination.installation import adopt as adopt_in
from natsctl.core.coordination.installation import assign as assign_in
from natsctl.errors import NotFoundError, StoreMissingError
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.bucket.store import KvStore
from natsctl.jetstream.connection.connection import Connection
from natsctl.jetstream.connection.connection import connect as connected_to
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.stores import Nats

RESTART = "daemons that run read this at their next start: restart them"

app = commands()

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]


@app.callback()
def installation() -> None:
    """See the id of this NATS system; take over the objects of a lost one.

    Objects in a cluster carry the id in the annotation natsctl.io/installation. Another
    installation's objects are never changed or collected.
    """


@app.command(
    "show",
    cls=Command,
    epilog=examples("natsctl installation show", "natsctl installation show -o json | jq -r .id"),
)
@connected
async def show(options: NatsOptions, *, output: OutputOption = Output.TABLE) -> None:
    """Show the id of this NATS system, and the ids that it has adopted."""
    async with connected_to(options) as connection:
        known = await _known(connection)
    if known is None:
        raise NotFoundError("this NATS system has no id yet: the first daemon makes one")
    write_found(known, output, names=[known.id], table=lambda: _show(known))


@app.command(
    "adopt",
    cls=Command,
    epilog=examples("natsctl installation adopt 1f0c9e77a2b34d58"),
)
@connected
async def adopt(
    options: NatsOptions,
    *,
    lost_id: Annotated[
        str, typer.Argument(help="the id of an installation that is gone", metavar="ID")
    ],
    yes: YesOption = False,
) -> None:
    """Take over the objects of an installation that is lost.

    They count as this installation's: they are adopted when their owners are synced, and collected
    if their owners do not exist here. If the other installation still runs, both change the same
    objects; each sync of it then fails with ErrResourceExists.
    """
    async with connected_to(options) as connection:
        confirm(f"Take over every object of installation {lost_id}?", yes=yes)
        changed = await adopt_in(Nats(connection), lost_id)
    _show(changed)
    say(RESTART)


@app.command(
    "set",
    cls=Command,
    epilog=examples("natsctl installation set 1f0c9e77a2b34d58"),
)
@connected
async def assign(
    options: NatsOptions,
    *,
    new_id: Annotated[str, typer.Argument(help="the id that this system continues", metavar="ID")],
    yes: YesOption = False,
) -> None:
    """Give this NATS system the id of the one that it replaces.

    For a new NATS system that got the primaries of an old one without its bucket natsctl. Two
    systems that run with one id collect each other's objects.
    """
    async with connected_to(options) as connection:
        known = await _known(connection)
        here = "has no id yet" if known is None else f"is {known.id}"
        confirm(f"This system {here}. Make it installation {new_id}?", yes=yes)
        changed = await assign_in(Nats(connection), new_id)
    _show(changed)
    say(RESTART)


async def _known(connection: Connection) -> Installation | None:
    store = KvStore(Bucket(connection, INSTALLATION.bucket), INSTALLATION)
    try:
        return await known_installation(store)
    except StoreMissingError:
        return None


def _show(known: Installation) -> None:
    line(f"installation {known.id}")
    if known.adopted:
        line(f"adopted      {', '.join(known.adopted)}")
