"""`natsctl history`: shows the revisions of a key that its bucket still has."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.names import NameArgument
from natsctl.cli.objects.buckets import open_bucket
from natsctl.cli.output.printing import Output, OutputOption, write_entries, write_table
from natsctl.errors import InvalidObjectError, NotFoundError
from natsctl.jetstream.bucket import Message
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import BucketStore
from natsctl.model import documents
from natsctl.operate.desired import desired_changes
from natsctl.operate.entries import NONE, age, cells_of, object_in, preview
from natsctl.operate.names import parse_name

HEADINGS = ("REVISION", "OPERATION", "GENERATION", "AGE", "VALUE")

app = App()


@app.add(
    "natsctl history greetings/shop",
    "natsctl history greetings shop --changes",
    "natsctl history greetings shop -o json | jq '.[].spec'",
)
@connected
async def history(
    options: NatsOptions,
    *,
    object_: NameArgument,
    changes: Annotated[
        bool,
        typer.Option("--changes", help="Only revisions that changed the desired state"),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the revisions of a key.

    The oldest revision comes first. The bucket's history limits the number of revisions.

    With --changes, only changes of spec, labels, annotations and deletion are shown. Changes of the
    status and of natsctl's own bookkeeping are left out. CHANGED names the fields, or says that the
    object was paused or resumed. natsctl rollback restores a revision.
    """
    name = parse_name(object_)
    async with open_bucket(options, name.bucket) as source:
        messages = await BucketStore(source).messages(name.key)
    if not messages:
        raise NotFoundError(f"{source.name} has no {name.key}, and no revision of it")
    changed: dict[int, str] | None = None
    if changes:
        desired = desired_changes(messages)
        messages = [message for message, _ in desired]
        changed = {message.revision: fields for message, fields in desired}
    write_entries(
        source.name,
        messages,
        output,
        table=lambda: _write_table(messages, changed),
        event=_event,
        name=lambda message: str(message.revision),
    )


def _event(message: Message) -> str:
    return "deleted" if message.marker else "put"


def _write_table(messages: list[Message], changed: dict[int, str] | None) -> None:
    now = datetime.now(UTC)
    rows = [_row(message, now) for message in messages]
    if changed is None:
        write_table(HEADINGS, rows)
        return
    *first, value = HEADINGS
    fields = (preview((changed[message.revision] or NONE).encode()) for message in messages)
    changed_rows = [[*row[:-1], text, row[-1]] for row, text in zip(rows, fields, strict=True)]
    write_table([*first, "CHANGED", value], changed_rows)


def _row(message: Message, now: datetime) -> list[str]:
    if message.marker:
        return [str(message.revision), "deleted", NONE, age(message.created, now), NONE]
    revision, generation, created = cells_of(message, ["REVISION", "GENERATION", "AGE"], now)
    return [revision, "put", generation, created, preview(_spec(message.value))]


def _spec(value: bytes) -> bytes:
    """Return the spec of the object in a value, or the value if it is not an object."""
    document = object_in(value) or {}
    try:
        return documents.render(document["spec"]) if "spec" in document else value
    except InvalidObjectError:  # it is nested too deeply to be encoded
        return value
