"""`natsctl rollback`: an earlier revision of an object, put back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from natsctl.cli.documents.desired import desires_the_same, restorable, with_reserved
from natsctl.cli.documents.values import Desired, Given, Whole, outcome, replaced
from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.framework.controllers import Kinds, kinds_of
from natsctl.cli.objects.buckets import existing
from natsctl.cli.output.entries import object_in
from natsctl.cli.output.printing import line
from natsctl.core.objects.compare_and_set import Rewritten
from natsctl.errors import InvalidObjectError, NotFoundError, UsageError
from natsctl.jetstream.bucket.browse import BucketStore, bucket_names
from natsctl.jetstream.bucket.bucket import Bucket, Message
from natsctl.jetstream.connection.connection import connect
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.keys import check_key
from natsctl.model.store import Stored

app = commands()

_NAMES_MAX = 2


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl rollback greetings shop --to 3",
        "natsctl rollback shop --to 3",
        "natsctl rollback greetings shop --to 3 -c controllers.greetings:Greetings",
    ),
)
@connected
async def rollback(
    options: NatsOptions,
    *,
    names: Annotated[
        list[str],
        typer.Argument(
            help="the object; the bucket may be left out if only one has the key",
            metavar="[BUCKET] KEY",
        ),
    ],
    to: Annotated[
        int, typer.Option("--to", min=1, help="the revision to put back", metavar="REVISION")
    ],
    controller: Annotated[
        str | None,
        typer.Option(
            "--controller",
            "-c",
            metavar="M:C",
            help="a controller whose type for this bucket the object has to be of",
        ),
    ] = None,
) -> None:
    """Put an earlier revision of an object back.

    Spec, labels and annotations return to their earlier state. Status, uid, finalizers, and the
    reserved annotations, such as the name of an external resource, stay as they are now. Nothing is
    stored if somebody else writes the object at the same time. natsctl history --changes shows the
    revisions.
    """
    if len(names) > _NAMES_MAX:
        raise UsageError("give a bucket and a key, or only a key")
    key = check_key(names[-1])
    async with _found(options, names) as bucket:
        kinds = [] if controller is None else kinds_of(controller, bucket.name)
        done = await _rolled_back(BucketStore(bucket), key, to, kinds)
    line(f"{bucket.name}/{key} {outcome(done)}, as it was at revision {to}")


@asynccontextmanager
async def _found(options: NatsOptions, names: list[str]) -> AsyncIterator[Bucket]:
    """Give the bucket that is named, or the only one that has the key."""
    *bucket, key = names
    async with connect(options) as connection:
        if bucket:
            yield await existing(connection, bucket[0])
            return
        buckets = [Bucket(connection, name) for name in await bucket_names(connection)]
        fitting = [found for found in buckets if await BucketStore(found).messages(key)]
        if not fitting:
            raise NotFoundError(f"no bucket has {key}, or a trace of it")
        if len(fitting) > 1:
            known = ", ".join(found.name for found in fitting)
            raise UsageError(f"several buckets have {key}: give one of {known} before the key")
        yield fitting[0]


async def _rolled_back(store: BucketStore, key: str, to: int, kinds: Kinds) -> Rewritten:
    messages = await store.messages(key)
    if not messages:
        raise NotFoundError(f"{store.kind.name} has no {key}, and no trace of it")
    newest = messages[-1]
    message = _revision(store.kind.name, messages, to)
    current = None if newest.marker else Stored(key, newest.revision, newest.value)
    try:
        value = _value(current, message, kinds)
    except (InvalidObjectError, UsageError) as error:
        text = f"revision {to} of {store.kind.name}/{key} is no valid object: {error}"
        raise UsageError(text) from error
    if current is None:
        return Rewritten(await store.create(key, value), 0)
    if desires_the_same(value, current.value):
        raise UsageError(
            f"revision {to} desires what {store.kind.name}/{key} desires now, at revision "
            f"{current.revision}: there is nothing to put back"
        )
    stored = await store.update(key, value, revision=current.revision)
    return Rewritten(stored, current.revision)


def _revision(bucket: str, messages: list[Message], to: int) -> Message:
    """Return the message of that revision; raises why there is none to put back."""
    for message in messages:
        if message.revision == to and message.marker:
            raise UsageError(
                f"revision {to} of {bucket}/{message.key} is a deletion, which has nothing to put "
                f"back: natsctl delete {bucket} {message.key} deletes"
            )
        if message.revision == to:
            return message
    known = ", ".join(str(message.revision) for message in messages)
    raise NotFoundError(
        f"{bucket}/{messages[-1].key} has no revision {to}, or not any more: it has {known}"
    )


def _value(current: Stored | None, message: Message, kinds: Kinds) -> bytes:
    """Return the value to store; raises why the message is no valid one."""
    before = None if current is None else object_in(current.value)
    document = object_in(message.value)
    wanted: Given = Whole(message.value)
    if document is not None:
        wanted = Desired(with_reserved(restorable(document), before))
    elif before is not None:
        raise UsageError("it is neither JSON nor has it a spec or metadata")
    value = replaced(current, wanted)
    for kind in kinds:
        kind.decode(value)
    return value
