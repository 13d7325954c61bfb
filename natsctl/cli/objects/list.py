"""`natsctl list`: lists the objects of a bucket."""

from natsctl.cli.framework.command import App, connected
from natsctl.cli.objects.buckets import (
    BucketArgument,
    KeysOption,
    SelectorOption,
    check_pattern,
    open_bucket,
    selected,
)
from natsctl.cli.output.printing import Output, OutputOption, write_entries
from natsctl.cli.output.terminal import write_notice
from natsctl.jetstream.bucket.browse import BucketStore
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.selectors import Selector

app = App()


@app.add(
    "natsctl list greetings",
    "natsctl list sites --keys 'europe.>' -l tier=edge,!retired",
    "natsctl list greetings -o yaml > greetings.yaml   # natsctl apply -f reads it",
    "natsctl list greetings -o name | xargs natsctl delete greetings",
    name="list",
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
    """List the objects of a bucket.

    READY is Pending until the controller has observed an object's newest generation, Deleting while
    finalizers hold the object, and Paused while its annotation pauses it. AGE is the age of the
    revision.
    """
    labels, pattern = Selector.parse(selector), check_pattern(keys)
    async with open_bucket(options, bucket) as source:
        messages = await BucketStore(source, keys=pattern).listing()
    matching = selected(messages, labels)
    if matching or output not in {Output.TABLE, Output.WIDE}:
        write_entries(bucket, matching, output)
    elif messages or keys != ">":
        write_notice(f"nothing in bucket {bucket} matches")
    else:
        write_notice(f"bucket {bucket} is empty")
