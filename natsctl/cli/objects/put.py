"""`natsctl put`: one object, as a whole."""

from collections.abc import Callable
from typing import Annotated

import typer

from natsctl.cli.documents.values import (
    Given,
    dropped,
    given,
    keeping_reserved,
    outcome,
    read_bytes,
    replaced,
    say_dropped,
)
from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.objects.buckets import BucketArgument, CreateOption, KeyArgument, bucket_of
from natsctl.cli.output.printing import line
from natsctl.core.objects.compare_and_set import Rewritten, rewrite
from natsctl.errors import ConflictError, UsageError
from natsctl.jetstream.bucket.browse import BucketStore
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.keys import check_key
from natsctl.model.store import Stored

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        """natsctl put greetings shop '{"spec": {"text": "hi"}}'""",
        "natsctl put greetings shop -f shop.yaml --revision 17",
        "natsctl put settings motd 'Closed on Sunday' --create-bucket",
        "date | natsctl put settings now -",
    ),
)
@connected
async def put(
    options: NatsOptions,
    *,
    bucket: BucketArgument,
    key: KeyArgument,
    value: Annotated[
        str | None, typer.Argument(help="JSON, YAML or text; - is standard input", metavar="VALUE")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="the file it is in", metavar="FILE")
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="only if there is none yet")] = False,
    revision: Annotated[
        int | None,
        typer.Option(min=1, help="only if this is the newest revision", metavar="REVISION"),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="store it as it is, whatever it is")] = False,
    drop_reserved: Annotated[
        bool,
        typer.Option("--drop-reserved", help="drop reserved annotations that VALUE does not have"),
    ] = False,
    create_bucket: CreateOption = False,
) -> None:
    """Store an object, as a whole.

    The desired state is replaced. Generation, uid, finalizers and status are kept right: a line
    names those in the value that are not stored. --raw stores a value exactly as it is given, as
    natsctl does with a value that is no object (JSON or YAML with a spec or metadata).

    Reserved annotations stay, unless VALUE has them: all of natsctl.io, and the name of an external
    resource with the results of its creation. An annotation with the value null is removed.
    """
    if create and revision is not None:
        raise UsageError("--create and --revision exclude each other")
    check_key(key)
    new = _new(value, file, raw=raw)

    lost: list[str] = []

    def change(current: Stored | None) -> bytes:
        if isinstance(new, bytes):
            return new
        lost[:] = dropped(current, new)
        return replaced(current, new if drop_reserved else keeping_reserved(current, new))

    async with bucket_of(options, bucket, create=create_bucket) as found:
        store = BucketStore(found)
        if create:
            done = Rewritten(await store.create(key, change(None)), 0)
        elif revision is not None:
            done = await _update(store, key, change, revision)
        else:
            done = await rewrite(store, key, change)
    line(f"{bucket}/{key} {outcome(done)}")
    say_dropped(f"{bucket}/{key}", lost)


def _new(value: str | None, file: str | None, *, raw: bool) -> Given | bytes:
    """Return what was given, in whichever way; as it is where it is *raw*."""
    if value == "-":
        value, file = None, "-" if file is None else file
    if (value is None) == (file is None):
        raise UsageError("give one of VALUE, -f FILE and - for standard input")
    data = read_bytes(file) if file is not None else (value or "").encode()
    return data if raw else given(data, file=file or "")


async def _update(
    store: BucketStore, key: str, change: Callable[[Stored | None], bytes], revision: int
) -> Rewritten:
    current = await store.get(key)
    if current.revision != revision:
        raise ConflictError(f"{key} is at revision {current.revision}, not at {revision}")
    value = change(current)
    if value == current.value:
        return Rewritten(current, None)
    return Rewritten(await store.update(key, value, revision=revision), revision)
