"""`natsctl list`: the objects of a bucket."""

from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.objects.buckets import (
    BucketArgument,
    KeysOption,
    SelectorOption,
    bucket_of,
    pattern_of,
    selected,
)
from natsctl.cli.output.printing import Output, OutputOption, write_entries
from natsctl.cli.output.terminal import say
from natsctl.jetstream.bucket.browse import BucketStore
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.selectors import Selector

app = commands()


@app.command(
    "list",
    cls=Command,
    epilog=examples(
        "natsctl list greetings",
        "natsctl list sites --keys 'europe.>' -l tier=edge,!retired",
        "natsctl list greetings -o yaml > greetings.yaml   # natsctl apply -f reads it",
        "natsctl list greetings -o name | xargs natsctl delete greetings",
    ),
)
@connected
async def list_(
    options: NatsOptions,
    *,
    bucket: BucketArgument,
    selector: SelectorOption = "",
    keys: KeysOption = ">",
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the objects of a bucket.

    READY is Pending while the controller has not seen an object's newest generation, and Deleting
    while finalizers hold it. AGE is that of the revision.
    """
    meant, pattern = Selector.parse(selector), pattern_of(keys)
    async with bucket_of(options, bucket) as found:
        messages = await BucketStore(found, keys=pattern).listing()
    shown = selected(messages, meant)
    if not shown and output in {Output.TABLE, Output.WIDE}:
        say(
            f"nothing in bucket {bucket} matches"
            if messages or keys != ">"
            else f"bucket {bucket} is empty"
        )
        return
    write_entries(bucket, shown, output)
