"""`natsctl history` and `natsctl rollback`: the revisions of a key."""

from datetime import UTC, datetime
from typing import Annotated

from natsctl.cli.command import App, KindsOf, OneObject, StoreOptions, load_kinds
from natsctl.cli.output import TABLE, VALUE, output_option, write_entries, write_table
from natsctl.cli.values import replace
from natsctl.cli.writing import DryRun, writing
from natsctl.core.compare_and_set import Rewritten
from natsctl.errors import InvalidObjectError, NotFoundError, UsageError
from natsctl.jetstream.bucket import Message
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import BucketStore
from natsctl.model import documents
from natsctl.model.store import Stored
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


@app.add(
    "natsctl history greetings/shop",
    "natsctl history greetings shop --changes",
    "natsctl history greetings shop -o json | jq '.[].spec'",
    changes="Only revisions that changed the desired state",
)
async def history(
    options: NatsOptions,
    *,
    object_: OneObject,
    changes: bool = False,
    output: Annotated[str, output_option(VALUE)] = TABLE,
) -> None:
    """Show the revisions of a key.

    The oldest comes first; the bucket's history limits their number. With --changes, changes of the
    status and of natsctl's bookkeeping are left out, and CHANGED names the fields that changed.
    natsctl rollback restores a revision.
    """
    name, now = parse_name(object_), datetime.now(UTC)
    async with open_bucket(options, name.bucket) as source:
        messages = await BucketStore(source).messages(name.key)
    if not messages:
        raise NotFoundError(f"{source.name} has no {name.key}, and no revision of it")
    shown = desired_changes(messages) if changes else [(message, "") for message in messages]

    def table() -> None:
        changed = ["CHANGED"] if changes else []
        rows = []
        for message, fields in shown:
            cells = [str(message.revision), "deleted", NONE, age(message.created, now), NONE]
            if not message.marker:
                _, generation, created = cells_of(message, ["REVISION", "GENERATION", "AGE"], now)
                cells[1:] = ["put", generation, created, preview(_spec(message.value))]
            rows.append(
                [*cells[:-1], *(preview((fields or NONE).encode()) for _ in changed), cells[-1]]
            )
        write_table(["REVISION", "OPERATION", "GENERATION", "AGE", *changed, "VALUE"], rows)

    write_entries(
        source.name,
        [message for message, _ in shown],
        output,
        table=table,
        events=["deleted" if message.marker else "put" for message, _ in shown],
        names=[str(message.revision) for message, _ in shown],
    )


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
    to="REVISION>=1 | Revision to restore",
)
async def rollback(
    stores: StoreOptions,
    *,
    object_: OneObject,
    to: int,
    controller: KindsOf = None,
    dry_run: DryRun = False,
) -> None:
    """Restore an earlier revision of an object.

    Spec, labels and annotations return to their earlier state. Status, uid, finalizers and reserved
    annotations, such as the name of an external resource, stay. Nothing is stored if another client
    writes the object at the same time. natsctl history --changes shows the revisions.
    """
    name = parse_name(object_)
    async with writing(stores, dry_run=dry_run) as target:
        bucket = await existing_bucket(target.connection, name.bucket)
        key, shown = name.key, f"{bucket.name}/{name.key}"
        messages = await BucketStore(bucket).messages(key)
        message = message_at(bucket.name, messages, key, to)
        if message.marker:
            raise UsageError(
                f"revision {to} of {shown} is a deletion, which cannot be restored: use natsctl "
                f"delete {shown}"
            )
        newest = messages[-1]
        current = None if newest.marker else Stored(key, newest.revision, newest.value)
        kinds = load_kinds(controller, bucket.name)
        try:
            value = _restored(current, message)
            for kind in kinds:
                kind.decode(value)
        except (InvalidObjectError, UsageError) as error:
            raise UsageError(f"revision {to} of {shown} is not a valid object: {error}") from error
        store = await target.store(bucket.name)
        if current is None:
            rewritten = Rewritten(await store.create(key, value), 0)
        elif desires_the_same(value, current.value):
            raise UsageError(
                f"revision {to} has the desired state that {shown} has now, at revision "
                f"{current.revision}: there is nothing to restore"
            )
        else:
            stored = await store.update(key, value, revision=current.revision)
            rewritten = Rewritten(stored, current.revision)
        target.report(shown, f"{target.outcome(rewritten)}, as it was at revision {to}")


def _restored(current: Stored | None, message: Message) -> bytes:
    before = None if current is None else object_in(current.value)
    document = object_in(message.value)
    if document is not None:
        restored = with_stored_version(restorable(document), document)
        return replace(current, with_reserved(restored, before))
    if before is not None:
        raise UsageError("it is not JSON with a spec or metadata")
    return replace(current, message.value)
