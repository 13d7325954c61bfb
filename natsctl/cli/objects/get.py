"""`natsctl get`: one object."""

from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.objects.buckets import BucketArgument, KeyArgument, bucket_of
from natsctl.cli.output.printing import Output, OutputOption, write_entry
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import NotFoundError, StoreError
from natsctl.jetstream.bucket.browse import BucketStore
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.connection.options import NatsOptions

NAMES_MAX = 5000  # of so many keys the nearest is looked for

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl get greetings shop",
        "natsctl get greetings shop -o yaml",
        "natsctl get settings motd -o value > motd.txt",
    ),
)
@connected
async def get(
    options: NatsOptions,
    *,
    bucket: BucketArgument,
    key: KeyArgument,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one object.

    READY is Pending while its controller has not seen the newest generation, and Deleting while
    finalizers hold it. AGE is that of the revision. A value that is no object (JSON with a spec or
    metadata) is shown as it is; -o value does so with any.
    """
    async with bucket_of(options, bucket) as found:
        try:
            message = await BucketStore(found).find(key)
        except NotFoundError as error:
            raise NotFoundError(f"{error}{await _advice(found, key, error)}") from error
    write_entry(bucket, message, output)


async def _advice(bucket: Bucket, key: str, error: NotFoundError) -> str:
    if error.deleted_at is not None:
        return f" at revision {error.deleted_at}; see natsctl history {bucket.name} {key}"
    try:
        keys = await bucket.keys()
    except StoreError:
        return ""
    return did_you_mean(key, keys) if len(keys) <= NAMES_MAX else ""
