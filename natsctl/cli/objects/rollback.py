"""`natsctl rollback`: restores an earlier revision of an object."""

from typing import Annotated

import typer

from natsctl.cli.documents.values import DesiredObject, RawValue, outcome, replace
from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.controller_options import KindsOption
from natsctl.cli.framework.controllers import Kinds, load_kinds
from natsctl.cli.framework.names import NameArgument
from natsctl.cli.objects.buckets import open_bucket
from natsctl.cli.output.terminal import write_line
from natsctl.core.compare_and_set import Rewritten
from natsctl.errors import InvalidObjectError, NotFoundError, UsageError
from natsctl.jetstream.bucket import Message
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import BucketStore
from natsctl.model.store import Stored
from natsctl.operate.desired import (
    desires_the_same,
    restorable,
    with_reserved,
    with_stored_version,
)
from natsctl.operate.entries import object_in
from natsctl.operate.names import parse_name

app = App()


@app.add(
    "natsctl rollback greetings/shop --to 3",
    "natsctl rollback greetings shop --to 3 -c controllers.greetings:Greetings",
)
@connected
async def rollback(
    options: NatsOptions,
    *,
    object_: NameArgument,
    to: Annotated[int, typer.Option("--to", min=1, help="Revision to restore", metavar="REVISION")],
    controller: KindsOption = None,
) -> None:
    """Restore an earlier revision of an object.

    Spec, labels and annotations return to their earlier state. Status, uid, finalizers and reserved
    annotations, such as the name of an external resource, stay. Nothing is stored if another client
    writes the object at the same time. natsctl history --changes shows the revisions.
    """
    name = parse_name(object_)
    async with open_bucket(options, name.bucket) as bucket:
        kinds = load_kinds(controller, bucket.name)
        rewritten = await _roll_back(BucketStore(bucket), name.key, to, kinds)
    write_line(f"{bucket.name}/{name.key} {outcome(rewritten)}, as it was at revision {to}")


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
