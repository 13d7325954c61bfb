"""`natsctl external`: creations in outside systems of which nobody knows what came."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

from natsctl.cli.buckets import existing
from natsctl.cli.command import Command, commands, connected, examples
from natsctl.cli.entries import NONE, age, object_in
from natsctl.cli.printing import Output, OutputOption, line, write_found, write_table
from natsctl.cli.terminal import say
from natsctl.errors import InvalidObjectError, NotFoundError, UsageError
from natsctl.kv.browse import BucketStore, bucket_names
from natsctl.kv.bucket import Bucket
from natsctl.kv.codec import check_key
from natsctl.kv.connection import Connection, connect
from natsctl.kv.options import NatsOptions
from natsctl.managed.resolution import resolve, unresolved
from natsctl.model import documents
from natsctl.model.objects import Object

app = commands()

BucketOption = Annotated[
    str | None, typer.Option("--bucket", help="only this bucket; all by default", metavar="BUCKET")
]


class Unresolved(msgspec.Struct, frozen=True, rename="camel"):
    """An object whose external resource may have been created, or not."""

    bucket: str
    key: str
    revision: int
    since: str
    external_name: str


@app.callback()
def external() -> None:
    """See and settle creations in outside systems whose result is unknown."""


@app.command(
    "list",
    cls=Command,
    epilog=examples(
        "natsctl external list --bucket disks",
        "natsctl external list -o json | jq '.[].key'",
    ),
)
@connected
async def show(
    options: NatsOptions, *, bucket: BucketOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Show objects of which nobody knows whether their external resource was created.

    Whoever created was interrupted before it could store the result. Nothing is done for such an
    object until a person has looked, and says so with natsctl external resolve.
    """
    async with connect(options) as connection:
        names = await bucket_names(connection) if bucket is None else [bucket]
        found = [each for name in names for each in await _unresolved(connection, name)]
    write_found(found, output, names=(each.key for each in found), table=lambda: _show(found))


@app.command(
    "resolve",
    cls=Command,
    epilog=examples(
        "natsctl external resolve data --created --name vol-0a1b2c",
        "natsctl external resolve data --not-created --bucket disks",
    ),
)
@connected
async def settle(
    options: NatsOptions,
    *,
    key: Annotated[str, typer.Argument(help="the object's key", metavar="KEY")],
    created: Annotated[
        bool | None,
        typer.Option("--created/--not-created", help="what you have found in the outside system"),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="how the outside system calls it", metavar="NAME")
    ] = "",
    bucket: BucketOption = None,
) -> None:
    """Say whether an object's external resource was created.

    With --created it is managed from now on, under --name where the system has named it. With
    --not-created it is created anew.
    """
    check_key(key)
    if created is None:
        raise UsageError("look whether it exists, then say --created or --not-created")
    if name and not created:
        raise UsageError("--name is of what was created")
    async with _found(options, key, bucket) as store:
        await resolve(store, key, created=created, external_name=name)
        line(f"{store.kind.name}/{key} resolved: {'created' if created else 'not created'}")


@asynccontextmanager
async def _found(options: NatsOptions, key: str, bucket: str | None) -> AsyncIterator[BucketStore]:
    """Give the one bucket in which the key has something to settle."""
    async with connect(options) as connection:
        if bucket is not None:
            yield BucketStore(await existing(connection, bucket), Object)
            return
        names = await bucket_names(connection)
        stores = [BucketStore(Bucket(connection, name), Object) for name in names]
        fitting = [store for store in stores if await _is_unresolved(store, key)]
        if not fitting:
            raise NotFoundError(f"no bucket has a {key} with an unknown result")
        if len(fitting) > 1:
            named = ", ".join(store.kind.name for store in fitting)
            raise UsageError(f"several buckets have such a {key}: say --bucket, one of {named}")
        yield fitting[0]


async def _is_unresolved(store: BucketStore, key: str) -> bool:
    try:
        annotations = store.kind.metadata((await store.get(key)).value).annotations
    except (NotFoundError, InvalidObjectError):
        return False
    return unresolved(annotations) is not None


async def _unresolved(connection: Connection, name: str) -> list[Unresolved]:
    bucket = await existing(connection, name)
    found = []
    for message in await BucketStore(bucket).listing():
        document = object_in(message.value) or {}
        said = documents.metadata_of(document).get("annotations")
        texts = said.items() if isinstance(said, dict) else ()
        annotations = {name: text for name, text in texts if isinstance(text, str)}
        intent = unresolved(annotations)
        if intent is not None:
            names, mark = intent
            external_name = annotations.get(names.external_name, "")
            since = mark.at.isoformat()
            found.append(Unresolved(name, message.key, message.revision, since, external_name))
    return found


def _show(found: list[Unresolved]) -> None:
    if not found:
        say("there are no creations with an unknown result")
        return
    now = datetime.now(UTC)
    headings = ["BUCKET", "KEY", "REVISION", "SINCE", "EXTERNAL NAME"]
    write_table(
        headings,
        [
            [at.bucket, at.key, str(at.revision), age(at.since, now), at.external_name or NONE]
            for at in found
        ],
    )
