"""Writes objects, for real or to show the changes; `put`, `apply` and `delete`."""

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import UNSET, UnsetType

from natsctl.cli import values
from natsctl.cli.arguments import (
    CreateOption,
    FilesOption,
    NamesArgument,
    SelectorOption,
    controller_option,
    load_controller,
)
from natsctl.cli.command import (
    App,
    StoreOptions,
    connected_to_stores,
    exit_status,
    exit_with,
    report_error,
)
from natsctl.cli.output import TABLE, WIDE, OutputOption, duration, write_differences, write_result
from natsctl.cli.schemas import Validate, ValidateOption, Validator
from natsctl.cli.terminal import YesOption, confirm, write_line, write_notice
from natsctl.cli.values import (
    DesiredObject,
    KeyDocument,
    NewValue,
    ignored_fields,
    keep_reserved,
    outcome,
    parse_value,
    read_bytes,
    read_documents,
    replace,
    with_version,
    write_ignored_notice,
)
from natsctl.cli.wait import until
from natsctl.core.compare_and_set import Rewritten, read, rewrite
from natsctl.core.compare_and_set import delete as delete_object
from natsctl.errors import (
    ConflictError,
    InvalidKeyError,
    InvalidObjectError,
    NatsctlError,
    NotFoundError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    TooLargeError,
    UsageError,
)
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.store import BucketStore, connect
from natsctl.model import documents
from natsctl.model.kinds import KvKind
from natsctl.model.objects import Object
from natsctl.model.plans import Action, Plan
from natsctl.model.schemas.kind_schema import PublishedKind
from natsctl.model.selectors import Selector
from natsctl.model.store import DRY_RUN, Store, Stored
from natsctl.operate.buckets import Selection, existing_bucket, published_schemas
from natsctl.operate.entries import object_in
from natsctl.operate.names import parse_name

if TYPE_CHECKING:
    from natsctl.core.plan.stores import Planned
    from natsctl.daemon.plan import MadePlan

app = App()

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the change, and store nothing")]

ThenPlanOption = Annotated[
    str | None,
    controller_option("With --dry-run, also plan what it would do then"),
]


class WriteTarget(msgspec.Struct, frozen=True):
    """The buckets of one command, whose writes are stored, or only shown as those of a *plan*."""

    connection: Connection
    output: str = TABLE
    plan: "Planned | None" = None

    @property
    def note(self) -> str:
        """The end of a result: whether it is one of a dry run."""
        return "" if self.plan is None else " (dry run)"

    @property
    def actions(self) -> tuple[Action, ...]:
        """The writes that are only shown."""
        return () if self.plan is None else self.plan.record.key_plan("").actions

    def outcome(self, rewritten: Rewritten) -> str:
        """Return the result of a write as a phrase."""
        if self.plan is None or rewritten.base is None:
            return outcome(rewritten)
        return f"{'configured' if rewritten.base else 'created'}{self.note}"

    async def store(
        self, bucket: str, value_type: type = bytes, *, create: bool | None = None
    ) -> Store:
        """Return the store of a bucket; raises `StoreMissingError` unless *create*."""
        creates = create if self.plan is None or create is None else False
        try:
            opened = await existing_bucket(self.connection, bucket, create=creates)
        except StoreMissingError:
            if self.plan is None or not create:
                raise
            return self.plan.nats.over(await self._kind(bucket, value_type), None)
        if self.plan is None:
            return BucketStore(opened, value_type)
        kind = await self._kind(opened.name, value_type)
        return self.plan.nats.over(kind, BucketStore(opened, value_type, guard=DRY_RUN))

    async def _kind(self, bucket: str, value_type: type) -> KvKind[object]:
        """Return the kind that the bucket's published schema names, if there is exactly one."""
        try:
            schemas = await published_schemas(self.connection, bucket)
        except StoreError:  # validation has reported it
            schemas = []
        if len(schemas) == 1:
            return PublishedKind(schemas[0], value_type)
        return KvKind(value_type, bucket=bucket)

    def report(self, bucket: str, key: str, result: str) -> None:
        """Report the result of a write, with the change if it is not stored.

        In another format than a table, the end of the command writes all changes.
        """
        if self.output in (TABLE, WIDE):
            write_line(f"{bucket}/{key} {result}")
            for action in self.actions:
                if (_bucket(action), action.key) == (bucket, key):
                    write_differences(action.diff, indent="  ")


class _Change(msgspec.Struct, frozen=True):
    """The result of a dry run in JSON: the changes of the command, and the plan that follows."""

    actions: tuple[Action, ...]
    plan: Plan | UnsetType = UNSET


def _bucket(action: Action) -> str:
    return action.kind.rpartition(".")[2]


class DryRun(msgspec.Struct, frozen=True):
    """The treatment of the writes of a command: they are stored, or only shown.

    With a controller, it also shows what the controller would do then.
    """

    shown: bool
    controller: str | None
    stores: StoreOptions
    output: str = TABLE

    def __post_init__(self) -> None:
        """Raise `UsageError` for a controller or a format without a dry run."""
        if self.output != TABLE and not self.shown:
            raise UsageError("--output is the format of a dry run: it needs --dry-run")
        if self.controller is not None and not self.shown:
            raise UsageError("--controller shows what follows a change: it needs --dry-run")

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[WriteTarget]:
        """Connect to NATS, and yield the buckets; the end of the context shows the plan."""
        async with connect(self.stores.nats) as nats:
            if not self.shown:
                yield WriteTarget(nats.connection)
                return
            from natsctl.core.plan.stores import planned  # noqa: PLC0415 - only for a dry run

            plan = planned(nats=nats, kube=None, key_of=lambda: "")
            target = WriteTarget(nats.connection, self.output, plan)
            yield target
            made = None if self.controller is None else await self._plan(plan, target.actions)
            change = _Change(target.actions, UNSET if made is None else made.plan)
            names = [f"{_bucket(action)}/{action.key}" for action in target.actions]
            write_result(change, self.output, names=names)
            if made is not None:
                from natsctl.cli.plan import exit_with_plan, write_plan  # noqa: PLC0415 - likewise

                if self.output in (TABLE, WIDE):
                    write_plan(made, self.output)
                exit_with_plan(made.plan, exit_code=False)

    async def _plan(self, plan: "Planned", actions: Sequence[Action]) -> "MadePlan":
        """Return what the controller would do after the changes of the command."""
        from natsctl.controller.slots import only_primary  # noqa: PLC0415 - it loads a class
        from natsctl.core.sync import current_key  # noqa: PLC0415 - likewise
        from natsctl.daemon.kinds import cluster_for  # noqa: PLC0415 - likewise
        from natsctl.daemon.plan import make_plan  # noqa: PLC0415 - likewise

        controller = load_controller(self.controller or "")
        primary = only_primary(type(controller)).kind
        bucket = primary.bucket if isinstance(primary, KvKind) else ""
        keys = {action.key for action in actions if _bucket(action) == bucket}
        logging.getLogger("natsctl").setLevel(logging.CRITICAL)
        async with cluster_for([controller], self.stores.cluster) as kube:
            return await make_plan(
                controller,
                stores=plan.of_another(current_key, cluster=kube),
                keys=keys if len(keys) == len(actions) else (),
                owner_names=self.stores.owner_names,
            )


NAME_WORDS = 2
"""Words that name an object without a slash: a bucket and a key."""


@app.add(
    """natsctl put greetings/shop '{"spec": {"text": "hi"}}'""",
    "natsctl put settings motd 'Closed on Sunday' --create-bucket",
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
        bool, typer.Option("--create", help="Store it only if the key does not exist")
    ] = False,
    revision: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Store it only if this is the newest revision",
            metavar="REVISION",
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Store it exactly as given")] = False,
    drop_reserved: Annotated[
        bool,
        typer.Option("--drop-reserved", help="Drop reserved annotations that VALUE lacks"),
    ] = False,
    create_bucket: CreateOption = False,
    validate: ValidateOption = Validate.STRICT,
    dry_run: DryRunOption = False,
    controller: ThenPlanOption = None,
    output: OutputOption = TABLE,
) -> None:
    """Store a whole object.

    VALUE replaces the desired state; natsctl keeps status, finalizers and bookkeeping.
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
        bucket = getattr(store.kind, "bucket", bucket)  # of a kind, if one was named
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


_OF_ONE_OBJECT = (
    *(UsageError, NotFoundError, ConflictError, InvalidObjectError, InvalidKeyError),
    TooLargeError,
)
"""Errors that don't keep a command from writing its other objects."""


async def _tried(name: str, work: Awaitable[None]) -> int:
    """Do the work on one object of several, and return its exit status."""
    try:
        await work
    except NatsctlError as error:
        if isinstance(error, StoreError) and not isinstance(error, _OF_ONE_OBJECT):
            raise
        report_error(f"{name}: {error}" if name else str(error))
        return exit_status(error)
    return 0


@app.add(
    "natsctl apply -f shop.yaml",
    "natsctl apply -f manifests/ -f extra.json --create-bucket",
    "natsctl get greetings -o yaml | sed s/hi/hello/ | natsctl apply -f -",
    "natsctl apply -f shop.yaml --dry-run -c controllers.greetings:Greetings",
)
@connected_to_stores
async def apply(
    stores: StoreOptions,
    *,
    file: FilesOption,
    create_bucket: CreateOption = False,
    validate: ValidateOption = Validate.STRICT,
    dry_run: DryRunOption = False,
    controller: ThenPlanOption = None,
    output: OutputOption = TABLE,
) -> None:
    """Apply objects from files.

    Each document names a bucket and a key. Each of its fields, such as the spec, replaces the whole
    field of the object; other fields stay, and labels and annotations are merged. If a document is
    invalid, nothing is written.
    """
    run = DryRun(dry_run, controller, stores, output)
    documents = read_documents(file)
    async with run.writing() as target:
        names = dict.fromkeys(document.bucket for document in documents)
        opened = {name: await target.store(name, create=create_bucket) for name in names}
        validators = {name: await Validator.of(target.connection, name, validate) for name in names}
        versions = _versions(validators, documents)
        statuses = [
            await _tried(
                f"{document.bucket}/{document.key}",
                _apply(target, opened[document.bucket], document, validators, version),
            )
            for document, version in zip(documents, versions, strict=True)
        ]
        exit_with(statuses)


def _versions(
    validators: Mapping[str, Validator], documents: Sequence[KeyDocument]
) -> list[int | None]:
    """Validate the documents, and return the version of each; exit if one is refused."""
    versions: list[int | None] = []
    statuses = []
    for document in documents:
        try:
            versions.append(validators[document.bucket].check(document.key, document.new))
        except InvalidObjectError as error:
            report_error(f"{document.bucket}/{document.key}: {error}")
            statuses.append(exit_status(error))
    exit_with(statuses)
    return versions


async def _apply(
    target: WriteTarget,
    store: Store,
    document: KeyDocument,
    validators: Mapping[str, Validator],
    version: int | None,
) -> None:
    ignored: list[str] = []

    def change(current: Stored | None) -> bytes:
        if current is None:
            validators[document.bucket].check_new(document.key, document.new)
        ignored[:] = ignored_fields(current, document.new)
        return values.apply(current, with_version(current, document.new, version))

    seen = await read(store, document.key)
    rewritten = await rewrite(store, document.key, change, seen=seen)
    target.report(document.bucket, document.key, target.outcome(rewritten))
    write_ignored_notice(f"{document.bucket}/{document.key}", ignored)


@app.add(
    "natsctl delete greetings shop market",
    "natsctl delete greetings/shop routes/shop --wait --wait-timeout 60",
    "natsctl delete sites -l tier=edge,!kept",
    "natsctl delete greetings --all --yes",
)
@connected_to_stores
async def delete(
    stores: StoreOptions,
    *,
    objects: NamesArgument,
    selector: SelectorOption = "",
    all_: Annotated[
        bool, typer.Option("--all", help="Delete all keys of BUCKET, the only word then")
    ] = False,
    yes: YesOption = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the objects are gone")] = False,
    wait_timeout: Annotated[
        float | None,
        typer.Option(
            help="Maximum time to wait, in seconds; implies --wait", metavar="SECONDS", min=0
        ),
    ] = None,
    dry_run: DryRunOption = False,
    controller: ThenPlanOption = None,
    output: OutputOption = TABLE,
) -> None:
    """Delete objects.

    An object with finalizers is marked as deleted. It's gone when each controller has cleaned up
    and has removed its finalizer.
    """
    run = DryRun(dry_run, controller, stores, output)
    every = "; --all is for every key of a bucket"
    selection = Selection.of(objects, selector, whole=all_, otherwise=every)
    waits = not dry_run and (wait or wait_timeout is not None)
    statuses: list[int] = []
    async with run.writing() as target:
        opened = await selection.open(target.connection)
        deleted: list[tuple[Bucket, set[str]]] = []
        for source, keys in opened:
            if not keys:
                nothing = "nothing in bucket {} matches" if selector else "bucket {} is empty"
                return write_notice(nothing.format(source.name))
            if all_:
                confirm(f"Delete all {len(keys)} keys of {source.name}?", yes=yes or dry_run)
            results = {key: await _tried("", _delete(target, source, key)) for key in keys}
            statuses += results.values()
            deleted.append((source, {key for key, status in results.items() if not status}))
        for source, left in deleted if waits else ():
            try:
                await until(source, left, lambda document: document is None, wait_timeout)
            except StoreTimeoutError:
                limit = duration(wait_timeout or 0)
                raise StoreTimeoutError(
                    f"{', '.join(sorted(left))} of {source.name} not deleted within {limit}: "
                    "natsctl get -o wide shows the finalizers"
                ) from None
        return exit_with(statuses)


async def _delete(target: WriteTarget, bucket: Bucket, key: str) -> None:
    """Delete an object, or mark it as deleted."""
    message = await BucketStore(bucket).find(key)
    document = object_in(message.value)
    store = await target.store(bucket.name, bytes if document is None else Object)
    marked = (await delete_object(store, key)).stored is not None
    finalizers = ", ".join(documents.finalizers_of(document or {}))
    held = f"marked deleted{target.note}, held by {finalizers}"
    target.report(bucket.name, key, held if marked else f"deleted{target.note}")


# ---- labels and annotations

_CHANGE = re.compile(r"[^=]+=.*|[^=]+-", re.DOTALL)

ChangesArgument = Annotated[
    list[str],
    typer.Argument(
        help="BUCKET/KEY, or BUCKET KEY, or BUCKET with --selector; then NAME=TEXT to set, "
        "NAME- to remove",
        metavar="BUCKET/KEY NAME=TEXT",
    ),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Change what has another text already")
]


def _metadata_command(field: str) -> Callable[..., None]:
    """Return the command that sets or removes labels or annotations, as *field* says."""

    async def change(
        stores: StoreOptions,
        *,
        words: ChangesArgument,
        selector: SelectorOption = "",
        overwrite: OverwriteOption = False,
        dry_run: DryRunOption = False,
    ) -> None:
        run = DryRun(dry_run, None, stores)
        await _change_metadata(run, words, selector, field=field, overwrite=overwrite)

    change.__doc__ = f"Set or remove {field} of objects."
    return connected_to_stores(change)


app.add(
    "natsctl label sites/a tier=edge",
    "natsctl label sites -l tier=edge region=eu tier-",
    "natsctl label sites a tier=core --overwrite --dry-run",
    name="label",
)(_metadata_command("labels"))
app.add("natsctl annotate sites/a owner=ann", "natsctl annotate sites a owner-", name="annotate")(
    _metadata_command("annotations")
)


async def _change_metadata(
    run: DryRun, words: Sequence[str], selector: str, *, field: str, overwrite: bool
) -> None:
    """Set the labels or the annotations of objects; exit with the status of the first failure."""
    first = next((number for number, word in enumerate(words) if _CHANGE.fullmatch(word)), None)
    if first is None:
        raise UsageError("nothing is to be changed: give NAME=TEXT, or NAME- to remove one")
    changes: dict[str, str | None] = {}
    for word in words[first:]:
        name, equals, text = word.partition("=")
        if not equals and not word.endswith("-"):
            raise UsageError(f"{word!r} is neither NAME=TEXT nor NAME-: objects come first")
        changes[name if equals else word[:-1]] = text if equals else None
    if field == "labels":
        for name, label_text in changes.items():
            Selector.of({name: label_text or ""})  # raises if it's not a label
    selection = Selection.of(words[:first], selector, otherwise="; or --selector")
    async with run.writing() as target:
        statuses: list[int] = []
        for source, keys in await selection.open(target.connection):
            if not keys:
                return write_notice(f"nothing in bucket {source.name} matches")
            for key in keys:
                work = _change_one(target, source.name, key, field, changes, overwrite=overwrite)
                statuses.append(await _tried(f"{source.name}/{key}", work))
        return exit_with(statuses)


async def _change_one(
    target: WriteTarget,
    bucket: str,
    key: str,
    field: str,
    changes: Mapping[str, str | None],
    *,
    overwrite: bool,
) -> None:
    store = await target.store(bucket)

    def change(current: Stored | None) -> bytes:
        if current is None:
            raise NotFoundError(f"{bucket} has no {key}")
        document = object_in(current.value)
        if document is None:
            raise UsageError(f"{bucket}/{key} has no metadata: it isn't an object")
        present: Any = documents.metadata_of(document).get(field) or {}
        for one, text in changes.items():
            if one in present and text not in (None, present[one]) and not overwrite:
                raise NatsctlError(
                    f"{one!r} already has a value ({present[one]}), and --overwrite is not given"
                )
        wanted = {one: text for one, text in changes.items() if text is not None or one in present}
        return values.apply(current, DesiredObject({"metadata": {field: wanted}}))

    rewritten = await rewrite(store, key, change, seen=await read(store, key))
    verb = "labeled" if field == "labels" else "annotated"
    added = field != "labels" or any(text is not None for text in changes.values())
    done = verb if added else f"un{verb}"  # kubectl has no word for a removed annotation
    outcome = f"not {verb}" if rewritten.base is None else f"{done}{target.note}"
    target.report(bucket, key, outcome)
