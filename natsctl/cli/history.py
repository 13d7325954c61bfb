"""`natsctl history` and `natsctl rollback`: the revisions of a key."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from natsctl.cli.arguments import Kinds, KindsOption, NameArgument, load_kinds
from natsctl.cli.command import App, StoreOptions, connected, connected_to_stores
from natsctl.cli.output import TABLE, VALUE, output_option, write_entries, write_table
from natsctl.cli.values import DesiredObject, RawValue, replace
from natsctl.cli.writing import DryRun, DryRunOption
from natsctl.core.compare_and_set import Rewritten
from natsctl.errors import InvalidObjectError, NotFoundError, UsageError
from natsctl.jetstream.bucket import Message
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import BucketStore
from natsctl.model import documents
from natsctl.model.store import Store, Stored
from natsctl.operate.buckets import existing_bucket, message_at, open_bucket
from natsctl.operate.desired import (
    desired_changes,
    desires_the_same,
    restorable,
    with_reserved,
    with_stored_version,
)
from natsctl.operate.entries import NONE, age, cells_of, object_in, preview
from natsctl.operate.names import parse_name

app = App()

HEADINGS = ("REVISION", "OPERATION", "GENERATION", "AGE", "VALUE")


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
    output: Annotated[str, output_option(VALUE)] = TABLE,
) -> None:
    """Show the revisions of a key.

    The oldest comes first; the bucket's history limits their number. With --changes, changes of the
    status and of natsctl's bookkeeping are left out, and CHANGED names the fields that changed.
    natsctl rollback restores a revision.
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


@app.add(
    "natsctl rollback greetings/shop --to 3 --dry-run",
    "natsctl rollback greetings shop --to 3 -c controllers.greetings:Greetings",
)
@connected_to_stores
async def rollback(
    stores: StoreOptions,
    *,
    object_: NameArgument,
    to: Annotated[int, typer.Option("--to", min=1, help="Revision to restore", metavar="REVISION")],
    controller: KindsOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Restore an earlier revision of an object.

    Spec, labels and annotations return to their earlier state. Status, uid, finalizers and reserved
    annotations, such as the name of an external resource, stay. Nothing is stored if another client
    writes the object at the same time. natsctl history --changes shows the revisions.
    """
    name = parse_name(object_)
    async with DryRun(dry_run, None, stores).writing() as target:
        bucket = await existing_bucket(target.connection, name.bucket)
        messages = await BucketStore(bucket).messages(name.key)
        if not messages:
            raise NotFoundError(f"{bucket.name} has no {name.key}, and no revision of it")
        kinds = load_kinds(controller, bucket.name)
        store = await target.store(bucket.name)
        rewritten = await _roll_back(store, bucket.name, messages, to, kinds)
        result = f"{target.outcome(rewritten)}, as it was at revision {to}"
        target.report(bucket.name, name.key, result)


async def _roll_back(
    store: Store, bucket: str, messages: Sequence[Message], to: int, kinds: Kinds
) -> Rewritten:
    key = messages[-1].key
    message = message_at(bucket, messages, key, to)
    if message.marker:
        raise UsageError(
            f"revision {to} of {bucket}/{key} is a deletion, which cannot be restored: use natsctl "
            f"delete {bucket}/{key}"
        )
    newest = messages[-1]
    current = None if newest.marker else Stored(key, newest.revision, newest.value)
    try:
        value = _value(current, message, kinds)
    except (InvalidObjectError, UsageError) as error:
        raise UsageError(
            f"revision {to} of {bucket}/{key} is not a valid object: {error}"
        ) from error
    if current is None:
        return Rewritten(await store.create(key, value), 0)
    if desires_the_same(value, current.value):
        raise UsageError(
            f"revision {to} has the desired state that {bucket}/{key} has now, at revision "
            f"{current.revision}: there is nothing to restore"
        )
    stored = await store.update(key, value, revision=current.revision)
    return Rewritten(stored, current.revision)


def _value(current: Stored | None, message: Message, kinds: Kinds) -> bytes:
    """Return the value to store; raises `InvalidObjectError` or `UsageError` if it is invalid."""
    before = None if current is None else object_in(current.value)
    document = object_in(message.value)
    if document is not None:
        restored = with_stored_version(restorable(document), document)
        value = replace(current, DesiredObject(with_reserved(restored, before)))
    elif before is not None:
        raise UsageError("it is not JSON with a spec or metadata")
    else:
        value = replace(current, RawValue(message.value))
    for kind in kinds:
        kind.decode(value)
    return value
