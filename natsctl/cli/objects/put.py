"""`natsctl put`: stores a whole object or value."""

from collections.abc import Callable
from typing import Annotated

import typer

from natsctl.cli.documents.values import (
    NewValue,
    ignored_fields,
    keep_reserved,
    parse_value,
    read_bytes,
    replace,
    with_version,
    write_ignored_notice,
)
from natsctl.cli.framework.command import App, connected_to_stores
from natsctl.cli.framework.options import StoreOptions
from natsctl.cli.objects.buckets import CreateOption
from natsctl.cli.objects.writing import ChangeOutputOption, DryRun, DryRunOption, ThenPlanOption
from natsctl.cli.schemas.validation import Validate, ValidateOption, Validator
from natsctl.core.compare_and_set import Rewritten, rewrite
from natsctl.core.explain import source_of
from natsctl.errors import ConflictError, UsageError
from natsctl.model.store import Store, Stored
from natsctl.operate.names import parse_name

NAME_WORDS = 2
"""Words that name an object without a slash: a bucket and a key."""

app = App()


@app.add(
    """natsctl put greetings/shop '{"spec": {"text": "hi"}}'""",
    "natsctl put greetings shop -f shop.yaml --revision 17",
    "natsctl put settings motd 'Closed on Sunday' --create-bucket",
    "date | natsctl put settings now -",
    "natsctl put greetings shop -f shop.yaml --dry-run -c controllers.greetings:Greetings",
)
@connected_to_stores
async def put(
    stores: StoreOptions,
    *,
    object_: Annotated[
        str, typer.Argument(help="The object: BUCKET/KEY, or BUCKET KEY", metavar="BUCKET/KEY")
    ],
    value: Annotated[
        str | None,
        typer.Argument(help="JSON, YAML or text; - reads standard input", metavar="VALUE"),
    ] = None,
    last: Annotated[str | None, typer.Argument(hidden=True, metavar="VALUE")] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="File with the value", metavar="FILE")
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Store the value only if the key does not exist")
    ] = False,
    revision: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Store the value only if this is the newest revision of the key",
            metavar="REVISION",
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Store the value exactly as it is given")
    ] = False,
    drop_reserved: Annotated[
        bool,
        typer.Option("--drop-reserved", help="Drop reserved annotations that VALUE does not have"),
    ] = False,
    create_bucket: CreateOption = False,
    validate: ValidateOption = Validate.STRICT,
    dry_run: DryRunOption = False,
    controller: ThenPlanOption = None,
    output: ChangeOutputOption = "text",
) -> None:
    """Store a whole object.

    VALUE replaces the desired state. natsctl maintains generation, uid, finalizers and status; a
    notice names the fields of VALUE that are not stored for that reason. A value that is not an
    object (JSON or YAML with a spec or metadata) is stored exactly as it is given. --raw does the
    same with any value, and does not validate it.

    If a daemon has published a schema for the bucket, a value that does not match is refused, and
    unknown fields cause a warning; see --validate.

    Reserved annotations stay, unless VALUE has them: all of natsctl.io, and the name of an external
    resource with the results of its creation. An annotation with the value null is removed.

    With --dry-run, the change is shown and not stored.
    """
    run = DryRun(dry_run, controller, stores, output)
    if create and revision is not None:
        raise UsageError("--create and --revision exclude each other")
    words = [word for word in (object_, value, last) if word is not None]
    count = 1 if "/" in object_ else NAME_WORDS
    name, values = parse_name(words[:count]), words[count:]
    if len(values) > 1:
        raise UsageError(f"{name} has several values: quote a value with spaces")
    bucket, key = name.bucket, name.key
    new = _new_value(values[0] if values else None, file, raw=raw)
    version: int | None = None
    ignored: list[str] = []

    def change(current: Stored | None) -> bytes:
        if isinstance(new, bytes):
            return new
        ignored[:] = ignored_fields(current, new)
        desired = with_version(current, new, version)
        return replace(current, keep_reserved(None if drop_reserved else current, desired))

    async with run.writing() as target:
        store = await target.store(bucket, create=create_bucket)
        bucket = source_of(store.kind)
        if not isinstance(new, bytes):
            validator = await Validator.of(target.connection, bucket, validate)
            version = validator.check(key, new)
            validator.check_new(key, new)
        if create:
            rewritten = Rewritten(await store.create(key, change(None)), 0)
        elif revision is not None:
            rewritten = await _update(store, key, change, revision)
        else:
            rewritten = await rewrite(store, key, change)
        target.report(bucket, key, target.outcome(rewritten))
        write_ignored_notice(f"{bucket}/{key}", ignored)


def _new_value(value: str | None, file: str | None, *, raw: bool) -> NewValue | bytes:
    """Return the parsed value, or its bytes if it is *raw*."""
    if value == "-":
        value, file = None, "-" if file is None else file
    if (value is None) == (file is None):
        raise UsageError("give one of VALUE, -f FILE and - for standard input")
    data = read_bytes(file) if file is not None else (value or "").encode()
    return data if raw else parse_value(data, file=file or "")


async def _update(
    store: Store, key: str, change: Callable[[Stored | None], bytes], revision: int
) -> Rewritten:
    current = await store.get(key)
    if current.revision != revision:
        raise ConflictError(f"{key} is at revision {current.revision}, not at {revision}")
    value = change(current)
    if value == current.value:
        return Rewritten(current, None)
    return Rewritten(await store.update(key, value, revision=revision), revision)
