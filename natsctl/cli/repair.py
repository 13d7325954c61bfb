"""`natsctl repair`: what a person does once a year."""

from datetime import UTC, datetime

from natsctl.cli import gc
from natsctl.cli.command import App, OneObject, Yes
from natsctl.cli.output import TABLE, OutputOption, write_result, write_rows
from natsctl.cli.terminal import confirm, write_line, write_notice
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
from natsctl.operate.links import forget_link, link_states
from natsctl.operate.objects import age, parse_name

app = App(help="Repair what nobody should have to, once a year.")
external = App(help="Show the links to external resources, and resolve unknown results.")
installation = App(help="Show or change the id of this NATS system.")
app.add_typer(external, name="external")
app.add_typer(installation, name="installation")
app.add(
    "natsctl repair gc --controller greetings",
    called="gc",
)(gc.accept)


@external.add(
    "natsctl repair external list --bucket disks",
    "natsctl repair external list -o json | jq '.[].key'",
    called="list",
    bucket="BUCKET | Only this bucket [default: all buckets]",
)
async def list_(
    options: NatsOptions, *, bucket: str | None = None, output: OutputOption = TABLE
) -> None:
    """Show the links from objects to external resources.

    An adopted resource existed before natsctl took it over. The state is unknown after an
    interrupted creation: the object is not synced until resolve stores the result. It is lost if
    the object does not exist or names another resource: check the outside system, then forget it.
    """
    async with connect(options) as connection:
        states = await link_states(connection, bucket)
    now = datetime.now(UTC)
    write_rows(
        states,
        output,
        names=[f"{one.bucket}/{one.key}" for one in states],
        headings=("BUCKET", "KEY", "REVISION", "STATE", "SINCE", "EXTERNAL NAME"),
        rows=[
            (
                *(one.bucket, one.key, one.revision or None, one.state),
                *(age(one.since, now), one.external_name),
            )
            for one in states
        ],
        nothing="there are no links to external resources",
    )


@external.add(
    "natsctl repair external resolve disks/data --created --name vol-0a1b2c",
    "natsctl repair external resolve disks data --not-created",
    called="resolve",
    created="--created/--not-created | Whether the resource exists in the outside system",
    name="NAME | Name in the outside system",
)
async def resolve_(
    options: NatsOptions, *, object_: OneObject, created: bool | None = None, name: str = ""
) -> None:
    """Resolve whether an object's external resource was created.

    With --created, the controller manages the resource, under --name if the outside system has
    given it a name. With --not-created, the controller creates the resource again.
    """
    if created is None:
        raise UsageError("check whether the resource exists, then give --created or --not-created")
    if name and not created:
        raise UsageError("--name needs --created")
    named = parse_name(object_)
    async with open_bucket(options, named.bucket) as source:
        await resolve(BucketStore(source, Object), named.key, created=created, external_name=name)
    write_line(f"{source.name}/{named.key} resolved: {'created' if created else 'not created'}")


@external.add("natsctl repair external adopt disks/data")
async def adopt(options: NatsOptions, *, object_: OneObject) -> None:
    """Let an object take over an external resource that natsctl didn't create.

    From then on the controller changes the resource as the object says, and deletes it with the
    object. The command sets the annotation natsctl.io/adopt, so the object says so by itself.
    """
    name = parse_name(object_)
    async with open_bucket(options, name.bucket) as source:
        await permit_adoption(BucketStore(source, Object), name.key)
    write_line(f"{source.name}/{name.key} adopts its external resource")


@external.add("natsctl repair external forget disks/data")
async def forget(options: NatsOptions, *, object_: OneObject) -> None:
    """Forget the link from an object to its external resource.

    The external resource stays, and no object manages it. If the object exists, the next
    reconciliation creates another resource for it.
    """
    name = parse_name(object_)
    async with connect(options) as connection:
        await forget_link(connection, name)
    write_line(f"{name} forgotten")


# ---- the installation


@installation.add(
    "natsctl repair installation show", "natsctl repair installation show -o json | jq -r .id"
)
async def show(options: NatsOptions, *, output: OutputOption = TABLE) -> None:
    """Show the id of this NATS system, and the ids that it has adopted."""
    async with connect(options) as connection:
        current = await _current(connection)
    if current is None:
        raise NotFoundError("this NATS system has no id yet: the first daemon creates one")
    write_result(current, output, names=[current.id], table=lambda: _write(current))


@installation.add(
    "natsctl repair installation adopt 1f0c9e77a2b34d58",
    called="adopt",
    lost_id="@ID | Id of an installation that does not run any more",
)
async def adopt_installation(options: NatsOptions, *, lost_id: str, yes: Yes = False) -> None:
    """Take over the objects of a lost installation.

    The objects are adopted when their owners are synced, and collected if their owners do not exist
    here. If the other installation still runs, both change the same objects, and each sync of them
    fails with ErrResourceExists.
    """
    async with connect(options) as connection:
        confirm(f"Take over every object of installation {lost_id}?", yes=yes)
        _write(await installations.adopt(Nats(connection), lost_id), changed=True)


@installation.add(
    "natsctl repair installation set 1f0c9e77a2b34d58",
    called="set",
    new_id="@ID | Id of the replaced NATS system",
)
async def set_(options: NatsOptions, *, new_id: str, yes: Yes = False) -> None:
    """Give this NATS system the id of the system that it replaces.

    Use it for a new NATS system that has the primaries of an old system, but not its bucket
    natsctl. Two systems that run with the same id collect each other's objects.
    """
    async with connect(options) as connection:
        current = await _current(connection)
        state = "has no id yet" if current is None else f"is {current.id}"
        confirm(f"This system {state}. Make it installation {new_id}?", yes=yes)
        _write(await installations.assign(Nats(connection), new_id), changed=True)


async def _current(connection: Connection) -> Installation | None:
    store = KvStore(Bucket(connection, INSTALLATION.bucket), INSTALLATION)
    try:
        return await installations.known_installation(store)
    except StoreMissingError:
        return None


def _write(current: Installation, *, changed: bool = False) -> None:
    write_line(f"installation {current.id}")
    if current.adopted:
        write_line(f"adopted      {', '.join(current.adopted)}")
    if changed:
        write_notice("running daemons still use the former id: restart them")
