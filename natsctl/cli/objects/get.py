"""`natsctl get`: shows one object, the objects of a bucket, or the buckets."""

from typing import Annotated

import msgspec
import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.objects.buckets import KeysOption, SelectorOption, columns_for, open_bucket
from natsctl.cli.objects.list import SortOption, list_objects
from natsctl.cli.output.formats import FormatOption, parse_format, write_one
from natsctl.cli.output.printing import Output, write_result, write_table
from natsctl.cli.output.terminal import write_notice
from natsctl.daemon.published import published_schemas
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import NotFoundError, StoreError, UsageError
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.connection import connect
from natsctl.jetstream.feed import names
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import BucketStore, bucket_names
from natsctl.operate.entries import NONE
from natsctl.operate.names import parse_name

KEYS_MAX = 5000
"""Keys of a bucket up to which a similar key is suggested."""

app = App()


@app.add(
    "natsctl get",
    "natsctl get greetings",
    "natsctl get sites -l tier=edge,!retired --sort-by spec.replicas",
    "natsctl get greetings/shop",
    "natsctl get greetings shop -o yaml",
    "natsctl get greetings shop -o field=spec.text",
    "natsctl get settings motd -o value > motd.txt",
)
@connected
async def get(
    options: NatsOptions,
    *,
    object_: Annotated[
        list[str] | None,
        typer.Argument(
            help="The object: BUCKET/KEY, or BUCKET KEY; or a bucket; without it, all buckets",
            metavar="BUCKET/KEY",
        ),
    ] = None,
    selector: SelectorOption = "",
    keys: KeysOption = ">",
    sort_by: SortOption = None,
    output: FormatOption = Output.TABLE.value,
) -> None:
    """Show one object, the objects of a bucket, or the buckets.

    READY is Pending until the controller has observed the newest generation, and Deleting while
    finalizers hold the object. AGE is the age of the revision. A value that is not an object (JSON
    with a spec or metadata) is shown as it is; -o value shows any value as it is. natsctl list
    explains the table of a bucket.
    """
    words = object_ or []
    if len(words) == 1 and "/" not in words[0]:
        await list_objects(
            options, words[0], selector=selector, keys=keys, sort_by=sort_by, output=output
        )
        return
    if selector or keys != ">" or sort_by is not None:
        raise UsageError("--selector, --keys and --sort-by are for the objects of a bucket")
    chosen = parse_format(output)
    if not words:
        if not isinstance(chosen, Output):
            raise UsageError("columns and fields are those of objects: name a bucket")
        await _list_buckets(options, chosen)
        return
    name = parse_name(words)
    async with open_bucket(options, name.bucket) as source:
        try:
            message = await BucketStore(source).find(name.key)
        except NotFoundError as error:
            raise NotFoundError(f"{error}{await _hint(source, name.key, error)}") from error
        columns = await columns_for(source, chosen)
    write_one(source.name, message, chosen, columns=columns)


class ShownBucket(msgspec.Struct, frozen=True):
    """A bucket, and the kinds that daemons have published for it."""

    bucket: str
    kinds: list[str]


async def _list_buckets(options: NatsOptions, output: Output) -> None:
    async with connect(options) as connection:
        names = await bucket_names(connection)
        try:
            schemas = await published_schemas(connection)
        except StoreError:  # the user may lack the permission to read schemas
            schemas = []
    kinds = {name: [schema.kind for schema in schemas if schema.bucket == name] for name in names}
    buckets = [ShownBucket(name, kinds[name]) for name in names]
    rows = [[bucket.bucket, ", ".join(bucket.kinds) or NONE] for bucket in buckets]
    if not rows and output in (Output.TABLE, Output.WIDE):
        write_notice("there are no buckets yet")
        return
    write_result(buckets, output, names=names, table=lambda: write_table(["BUCKET", "KINDS"], rows))


async def _hint(bucket: Bucket, key: str, error: NotFoundError) -> str:
    if error.deleted_at is not None:
        return f" at revision {error.deleted_at}; see natsctl history {bucket.name} {key}"
    try:
        keys = await names(bucket, ">")
    except StoreError:
        return ""
    return did_you_mean(key, keys) if len(keys) <= KEYS_MAX else ""
