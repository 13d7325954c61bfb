"""`natsctl rollback`: restores an earlier revision of an object."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from natsctl.cli.documents.desired import (
    desires_the_same,
    restorable,
    with_reserved,
    with_stored_version,
)
from natsctl.cli.documents.values import DesiredObject, RawValue, outcome, replace
from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.controller_options import KindsOption
from natsctl.cli.framework.controllers import Kinds, load_kinds
from natsctl.cli.framework.usage import only
from natsctl.cli.objects.buckets import existing_bucket
from natsctl.cli.output.terminal import write_line
from natsctl.core.objects.compare_and_set import Rewritten
from natsctl.errors import InvalidObjectError, NotFoundError, UsageError
from natsctl.jetstream.bucket.browse import BucketStore, bucket_names
from natsctl.jetstream.bucket.bucket import Bucket, Message
from natsctl.jetstream.bucket.entries import object_in
from natsctl.jetstream.connection.connection import connect
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.keys import check_key
from natsctl.model.store import Stored

NAMES_MAX = 2
"""Arguments of the command: a bucket and a key."""

app = App()


@app.add(
    "natsctl rollback greetings shop --to 3",
    "natsctl rollback shop --to 3",
    "natsctl rollback greetings shop --to 3 -c controllers.greetings:Greetings",
)
@connected
async def rollback(
    options: NatsOptions,
    *,
    names: Annotated[
        list[str],
        typer.Argument(
            help="Bucket and key of the object; the bucket is optional if only one has the key",
            metavar="[BUCKET] KEY",
        ),
    ],
    to: Annotated[int, typer.Option("--to", min=1, help="Revision to restore", metavar="REVISION")],
    controller: KindsOption = None,
) -> None:
    """Restore an earlier revision of an object.

    Spec, labels and annotations return to their earlier state. Status, uid, finalizers and reserved
    annotations, such as the name of an external resource, stay. Nothing is stored if another client
    writes the object at the same time. natsctl history --changes shows the revisions.
    """
    if len(names) > NAMES_MAX:
        raise UsageError("give a bucket and a key, or only a key")
    key = check_key(names[-1])
    async with _open_bucket_with_key(options, names) as bucket:
        kinds = load_kinds(controller, bucket.name)
        rewritten = await _roll_back(BucketStore(bucket), key, to, kinds)
    write_line(f"{bucket.name}/{key} {outcome(rewritten)}, as it was at revision {to}")


@asynccontextmanager
async def _open_bucket_with_key(options: NatsOptions, names: list[str]) -> AsyncIterator[Bucket]:
    """Open the bucket in *names*, or the only bucket that has the key."""
    *bucket, key = names
    async with connect(options) as connection:
        if bucket:
            yield await existing_bucket(connection, bucket[0])
            return
        buckets = [
            name
            for name in await bucket_names(connection)
            if await BucketStore(Bucket(connection, name)).messages(key)
        ]
        if not buckets:
            raise NotFoundError(f"no bucket has {key}, or a revision of it")
        name = only(buckets, f"several buckets have {key}", "the bucket before the key")
        yield Bucket(connection, name)


async def _roll_back(store: BucketStore, key: str, to: int, kinds: Kinds) -> Rewritten:
    bucket = store.kind.name
    messages = await store.messages(key)
    if not messages:
        raise NotFoundError(f"{bucket} has no {key}, and no revision of it")
    newest, message = messages[-1], _message_at(bucket, messages, to)
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


def _message_at(bucket: str, messages: list[Message], revision: int) -> Message:
    """Return the message of a revision.

    Raises `NotFoundError` if the bucket does not have it, and `UsageError` if it is a deletion.
    """
    for message in messages:
        if message.revision == revision and message.marker:
            raise UsageError(
                f"revision {revision} of {bucket}/{message.key} is a deletion, which cannot be "
                f"restored: use natsctl delete {bucket} {message.key}"
            )
        if message.revision == revision:
            return message
    kept = ", ".join(str(message.revision) for message in messages)
    raise NotFoundError(
        f"{bucket}/{messages[-1].key} has no revision {revision}, or not any more: it has {kept}"
    )


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
