"""`natsctl repair`: what a person does once a year."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from natsctl.cli.arguments import NameArgument, NamedOption
from natsctl.cli.command import CONFLICT, App, StoreOptions, connected, connected_to_stores
from natsctl.cli.gc import LocalOption, collecting, write_garbage
from natsctl.cli.output import TABLE, OutputOption, write_result, write_table
from natsctl.cli.terminal import YesOption, confirm, write_line, write_notice
from natsctl.core import installation as installations
from natsctl.core.installation import INSTALLATION, Installation
from natsctl.errors import NotFoundError, StoreMissingError, UsageError
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.connection import Connection, connect
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import BucketStore, KvStore, Nats
from natsctl.managed.links import permit_adoption, resolve
from natsctl.model.objects import Object
from natsctl.operate.buckets import open_bucket
from natsctl.operate.entries import NONE, age
from natsctl.operate.links import LinkState, forget_link, link_states
from natsctl.operate.names import Name, parse_name

app = App(help="Repair what nobody should have to, once a year.")
external = App(help="Show the links to external resources, and resolve unknown results.")
installation = App(help="Show or change the id of this NATS system.")
app.add_typer(external, name="external")
app.add_typer(installation, name="installation")

HEADINGS = ("BUCKET", "KEY", "REVISION", "STATE", "SINCE", "EXTERNAL NAME")

BucketOption = Annotated[
    str | None,
    typer.Option("--bucket", help="Only this bucket [default: all buckets]", metavar="BUCKET"),
]

OldBucketOption = Annotated[str | None, typer.Option("--bucket", metavar="BUCKET", hidden=True)]


@external.add(
    "natsctl repair external list --bucket disks",
    "natsctl repair external list -o json | jq '.[].key'",
    name="list",
)
@connected
async def list_(
    options: NatsOptions, *, bucket: BucketOption = None, output: OutputOption = TABLE
) -> None:
    """Show the links from objects to external resources.

    An adopted resource existed before natsctl took it over. The state is unknown after an
    interrupted creation: the object is not synced until resolve stores the result. It is lost if
    the object does not exist or names another resource: check the outside system, then forget it.
    """
    async with connect(options) as connection:
        states = await link_states(connection, bucket)
    keys = (f"{state.bucket}/{state.key}" for state in states)
    write_result(states, output, names=keys, table=lambda: _write_table(states))


def _named(words: Sequence[str], bucket: str | None) -> Name:
    """Return the object; until version 0.2 it was a key and --bucket."""
    return parse_name([bucket, *words] if bucket is not None and "/" not in words[0] else words)


@external.add(
    "natsctl repair external resolve disks/data --created --name vol-0a1b2c",
    "natsctl repair external resolve disks data --not-created",
    name="resolve",
)
@connected
async def resolve_(
    options: NatsOptions,
    *,
    object_: NameArgument,
    created: Annotated[
        bool | None,
        typer.Option(
            "--created/--not-created", help="Whether the resource exists in the outside system"
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            "--name", help="Name in the outside system", metavar="NAME", show_default=False
        ),
    ] = "",
    bucket: OldBucketOption = None,
) -> None:
    """Resolve whether an object's external resource was created.

    With --created, the controller manages the resource, under --name if the outside system has
    given it a name. With --not-created, the controller creates the resource again.
    """
    if created is None:
        raise UsageError("check whether the resource exists, then give --created or --not-created")
    if name and not created:
        raise UsageError("--name needs --created")
    named = _named(object_, bucket)
    async with open_bucket(options, named.bucket) as source:
        await resolve(BucketStore(source, Object), named.key, created=created, external_name=name)
    write_line(f"{source.name}/{named.key} resolved: {'created' if created else 'not created'}")


@external.add("natsctl repair external adopt disks/data")
@connected
async def adopt(
    options: NatsOptions, *, object_: NameArgument, bucket: OldBucketOption = None
) -> None:
    """Let an object take over an external resource that natsctl didn't create.

    From then on the controller changes the resource as the object says, and deletes it with the
    object. The command sets the annotation natsctl.io/adopt, so the object says so by itself.
    """
    named = _named(object_, bucket)
    async with open_bucket(options, named.bucket) as source:
        await permit_adoption(BucketStore(source, Object), named.key)
    write_line(f"{source.name}/{named.key} adopts its external resource")


@external.add("natsctl repair external forget disks/data")
@connected
async def forget(
    options: NatsOptions, *, object_: NameArgument, bucket: OldBucketOption = None
) -> None:
    """Forget the link from an object to its external resource.

    The external resource stays, and no object manages it. If the object exists, the next
    reconciliation creates another resource for it.
    """
    named = _named(object_, bucket)
    async with connect(options) as connection:
        await forget_link(connection, named)
    write_line(f"{named} forgotten")


def _write_table(states: list[LinkState]) -> None:
    if states:
        now = datetime.now(UTC)
        write_table(HEADINGS, [_row(state, now) for state in states])
    else:
        write_notice("there are no links to external resources")


def _row(state: LinkState, now: datetime) -> list[str]:
    revision = str(state.revision) if state.revision else NONE
    since, external_name = age(state.since, now), state.external_name or NONE
    return [state.bucket, state.key, revision, state.state, since, external_name]


RESTART = "running daemons still use the former id: restart them"


@installation.add(
    "natsctl repair installation show", "natsctl repair installation show -o json | jq -r .id"
)
@connected
async def show(options: NatsOptions, *, output: OutputOption = TABLE) -> None:
    """Show the id of this NATS system, and the ids that it has adopted."""
    async with connect(options) as connection:
        current = await _current(connection)
    if current is None:
        raise NotFoundError("this NATS system has no id yet: the first daemon creates one")
    write_result(current, output, names=[current.id], table=lambda: _write(current))


@installation.add("natsctl repair installation adopt 1f0c9e77a2b34d58", name="adopt")
@connected
async def adopt_installation(
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


@installation.add("natsctl repair installation set 1f0c9e77a2b34d58", name="set")
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


# ---- garbage collection that is held


@app.add(
    "natsctl repair gc --controller greetings",
    "natsctl repair gc --local -c controllers.greetings:Greetings --yes",
)
@connected_to_stores
async def gc(
    stores: StoreOptions,
    *,
    controller: NamedOption = None,
    local: LocalOption = False,
    yes: YesOption = False,
) -> None:
    """Accept the bucket of primaries as it is, so that garbage collection continues.

    Collection is held if the bucket was recreated, restored from an older copy, or suddenly lost
    many keys. After this command, every secondary whose owner does not exist is garbage.
    """
    async with collecting(stores, controller, local=local) as collector:
        plan = await collector.plan()
        if not plan.refused:
            write_notice("nothing is held: there is nothing to accept")
            return
        write_garbage(plan)
        confirm("Accept the bucket as it is, and collect these objects?", yes=yes)
        after = await collector.accept(plan)
    if after.refused:
        write_notice(f"still held, until natsctl gc apply removes the objects: {after.refused}")
        raise typer.Exit(CONFLICT)
    write_line("accepted")
