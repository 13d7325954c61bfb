"""`natsctl get`: shows one object."""

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.names import NameArgument, parse_name
from natsctl.cli.objects.buckets import columns_for, open_bucket
from natsctl.cli.output.formats import FormatOption, parse_format, write_one
from natsctl.cli.output.printing import Output
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import NotFoundError, StoreError
from natsctl.jetstream.bucket.browse import BucketStore
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.connection.options import NatsOptions

KEYS_MAX = 5000
"""Keys of a bucket up to which a similar key is suggested."""

app = App()


@app.add(
    "natsctl get greetings/shop",
    "natsctl get greetings shop -o yaml",
    "natsctl get greetings shop -o field=spec.text",
    "natsctl get settings motd -o value > motd.txt",
)
@connected
async def get(
    options: NatsOptions,
    *,
    object_: NameArgument,
    output: FormatOption = Output.TABLE.value,
) -> None:
    """Show one object.

    READY is Pending until the controller has observed the newest generation, and Deleting while
    finalizers hold the object. AGE is the age of the revision. A value that is not an object (JSON
    with a spec or metadata) is shown as it is; -o value shows any value as it is.
    """
    chosen = parse_format(output)
    name = parse_name(object_)
    async with open_bucket(options, name.bucket) as source:
        try:
            message = await BucketStore(source).find(name.key)
        except NotFoundError as error:
            raise NotFoundError(f"{error}{await _hint(source, name.key, error)}") from error
        columns = await columns_for(source, chosen)
    write_one(source.name, message, chosen, columns=columns)


async def _hint(bucket: Bucket, key: str, error: NotFoundError) -> str:
    if error.deleted_at is not None:
        return f" at revision {error.deleted_at}; see natsctl history {bucket.name} {key}"
    try:
        keys = await bucket.keys()
    except StoreError:
        return ""
    return did_you_mean(key, keys) if len(keys) <= KEYS_MAX else ""
