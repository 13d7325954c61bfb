"""`natsctl history`: what a bucket still knows of a key."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from natsctl.cli.documents.desired import changes as desired_changes
from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.objects.buckets import BucketArgument, KeyArgument, bucket_of
from natsctl.cli.output.entries import NONE, age, described, described_raw, object_in, preview, row
from natsctl.cli.output.printing import (
    Output,
    OutputOption,
    line,
    write_json,
    write_table,
    write_value,
    write_yaml,
)
from natsctl.errors import InvalidObjectError, NotFoundError
from natsctl.jetstream.bucket.browse import BucketStore
from natsctl.jetstream.bucket.bucket import Message
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model import documents

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl history greetings shop",
        "natsctl history greetings shop --changes",
        "natsctl history greetings shop -o json | jq '.[].spec'",
    ),
)
@connected
async def history(
    options: NatsOptions,
    *,
    bucket: BucketArgument,
    key: KeyArgument,
    changes: Annotated[
        bool,
        typer.Option("--changes", help="only revisions that changed the desired state"),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what a bucket still knows of a key.

    The oldest revision comes first. The bucket's history limits how many there are.

    With --changes, only changes of spec, labels, annotations and deletion are shown; changes of
    the status and of natsctl's own bookkeeping are not. natsctl rollback puts a revision back.
    """
    async with bucket_of(options, bucket) as found:
        messages = await BucketStore(found).messages(key)
    if not messages:
        raise NotFoundError(f"{bucket} has no {key}, and no trace of it")
    if changes:
        messages = desired_changes(messages)
    match output:
        case Output.TABLE | Output.WIDE:
            now = datetime.now(UTC)
            headings = ["REVISION", "OPERATION", "GENERATION", "AGE", "VALUE"]
            write_table(headings, [_row(message, now) for message in messages])
        case Output.JSON:
            write_json([_raw(bucket, message) for message in messages])
        case Output.YAML:
            write_yaml([_described(bucket, message) for message in messages])
        case Output.NAME:
            for message in messages:
                line(str(message.revision))
        case Output.VALUE:
            for message in messages:
                write_value(message.value)


def _row(message: Message, now: datetime) -> list[str]:
    if message.marker:
        return [str(message.revision), "deleted", NONE, age(message.created, now), NONE]
    revision, generation, at = row(message, ["REVISION", "GENERATION", "AGE"], now)
    return [revision, "put", generation, at, preview(_spec(message.value))]


def _spec(value: bytes) -> bytes:
    """Return the spec of the object in a value, or else the value."""
    document = object_in(value) or {}
    try:
        return documents.render(document["spec"]) if "spec" in document else value
    except InvalidObjectError:  # nested too deeply to be written again
        return value


def _described(bucket: str, message: Message) -> dict[str, object]:
    if message.marker:
        return {
            "bucket": bucket,
            "key": message.key,
            "revision": message.revision,
            "event": "deleted",
        }
    return {**described(bucket, message), "event": "put"}


def _raw(bucket: str, message: Message) -> object:
    """Return the same for JSON, whatever is in the value."""
    if message.marker:
        return _described(bucket, message)
    return described_raw(bucket, message, event="put")
