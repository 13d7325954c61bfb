"""`natsctl list`: lists the objects of a bucket."""

from typing import Annotated

import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.objects.buckets import (
    BucketArgument,
    KeysOption,
    SelectorOption,
    check_pattern,
    columns_for,
    open_bucket,
)
from natsctl.cli.output.formats import FormatOption, ordered, parse_format, write_formatted
from natsctl.cli.output.printing import Output
from natsctl.cli.output.terminal import write_notice
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import BucketStore
from natsctl.model.schemas.field_paths import FieldPath
from natsctl.model.selectors import Selector
from natsctl.operate.buckets import selected

SortOption = Annotated[
    str | None,
    typer.Option(
        "--sort-by",
        metavar="PATH",
        help="Sort by a field, such as spec.replicas, instead of by key",
    ),
]

app = App()


@app.add(
    "natsctl list greetings",
    "natsctl list sites --keys 'europe.>' -l tier=edge,!retired",
    "natsctl list greetings -o yaml > greetings.yaml   # natsctl apply -f reads it",
    "natsctl list greetings --sort-by spec.text -o custom-columns=KEY:key,TEXT:spec.text",
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
    sort_by: SortOption = None,
    output: FormatOption = Output.TABLE.value,
) -> None:
    """List the objects of a bucket.

    READY is Pending until the controller has observed an object's newest generation, Deleting while
    finalizers hold the object, and Paused while its annotation pauses it. AGE is the age of the
    revision. The table also has the columns that the controller declares for its kind; `<none>` is
    a missing field. On a terminal, long values are cut; -o wide shows them whole.

    A path is that of a field as -o json shows it, such as spec.image, key or
    status.conditions[0].type. Objects without the field are listed last.
    """
    await list_objects(
        options, bucket, selector=selector, keys=keys, sort_by=sort_by, output=output
    )


async def list_objects(
    options: NatsOptions,
    bucket: str,
    *,
    selector: str,
    keys: str,
    sort_by: str | None,
    output: str,
) -> None:
    """Write the objects of a bucket; see `list_`."""
    chosen = parse_format(output)
    labels, pattern = Selector.parse(selector), check_pattern(keys)
    order = None if sort_by is None else FieldPath.parse(sort_by)
    async with open_bucket(options, bucket) as source:
        bucket = source.name
        messages = await BucketStore(source, keys=pattern).listing()
        columns = await columns_for(source, chosen)
    matching = selected(messages, labels)
    if order is not None:
        matching = ordered(bucket, matching, order)
    if matching or chosen not in (Output.TABLE, Output.WIDE):
        write_formatted(bucket, matching, chosen, columns=columns)
    elif messages or keys != ">":
        write_notice(f"nothing in bucket {bucket} matches")
    else:
        write_notice(f"bucket {bucket} is empty")
