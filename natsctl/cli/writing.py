"""`natsctl put`, `apply`, `delete`, `label` and `annotate`: writes, for real or to be shown."""

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer
from msgspec import UNSET, UnsetType

from natsctl.cli import values
from natsctl.cli.command import (
    App,
    CreateBucket,
    Files,
    Labels,
    Objects,
    OneObject,
    StoreOptions,
    Yes,
    exit_status,
    exit_with,
    load_controller,
    option,
    report,
    report_error,
)
from natsctl.cli.get import until
from natsctl.cli.output import (
    TABLE,
    TABLES,
    OutputOption,
    duration,
    write_differences,
    write_result,
    write_unified,
)
from natsctl.cli.schemas import Checked, Validate, Validator
from natsctl.cli.terminal import confirm, write_line, write_notice
from natsctl.cli.values import with_version, write_ignored
from natsctl.core.compare_and_set import delete as delete_object
from natsctl.core.compare_and_set import read, rewrite
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
from natsctl.jetstream.bucket import Bucket, Message
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.connection import connect as connect_to
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import BucketStore, connect
from natsctl.model import documents
from natsctl.model.kinds import KvKind
from natsctl.model.objects import Object
from natsctl.model.plans import Action, Plan
from natsctl.model.schemas.kind_schema import KindSchema, PublishedKind
from natsctl.model.selectors import Selector
from natsctl.model.store import DRY_RUN, Store, Stored
from natsctl.operate.buckets import (
    Selection,
    existing_bucket,
    message_at,
    published_schemas,
)
from natsctl.operate.objects import (
    Name,
    NewValue,
    described,
    object_in,
    parse_name,
    replaced,
    restored_value,
)

if TYPE_CHECKING:
    from natsctl.core.plan.stores import Planned

app = App()

DryRun = Annotated[bool, option("--dry-run | Show the change, and store nothing")]
Then = Annotated[
    str | None, option("--controller -c M:C | With --dry-run, also plan what it would do then")
]


class Writing(msgspec.Struct, frozen=True):
    """The writes of one command, which are stored, or only shown as those of a *plan*."""

    connection: Connection
    output: str
    plan: "Planned | None" = None

    @property
    def note(self) -> str:
        return "" if self.plan is None else " (dry run)"

    @property
    def actions(self) -> tuple[Action, ...]:
        return () if self.plan is None else self.plan.record.key_plan("").actions

    async def store(
        self, bucket: str, value_type: type = bytes, *, create: bool | None = None
    ) -> Store:
        """Return the store of a bucket; raises `StoreMissingError` unless *create*."""
        plan, opened = self.plan, None
        creates = create if plan is None or create is None else False
        try:
            opened = await existing_bucket(self.connection, bucket, create=creates)
        except StoreMissingError:
            if plan is None or not create:
                raise
        if plan is None:
            return BucketStore(cast("Bucket", opened), value_type)
        name = bucket if opened is None else opened.name
        schemas: list[KindSchema] = []
        with suppress(StoreError):  # validation has reported it
            schemas = await published_schemas(self.connection, name)
        one = len(schemas) == 1
        kind: KvKind[object] = (
            PublishedKind(schemas[0], value_type) if one else KvKind(value_type, bucket=name)
        )
        planned = None if opened is None else BucketStore(opened, value_type, guard=DRY_RUN)
        return plan.nats.over(kind, planned)

    async def write(
        self,
        store: Store,
        name: Name,
        combine: Callable[[Stored | None], bytes],
        *,
        new: NewValue = b"",
        note: str = "",
    ) -> None:
        """Store what *combine* makes of the current object, and report it, with a *note*.

        What *new* has of status and bookkeeping isn't stored, and a notice says so.
        """
        before: Stored | None = None

        def change(current: Stored | None) -> bytes:
            nonlocal before
            before = current
            return combine(current)

        written = await rewrite(store, name.key, change, seen=await read(store, name.key))
        at = f" at revision {written.stored.revision}"
        result = f"unchanged{at}"
        if written.base is not None:
            result = "configured" if written.base else "created"
            result += at if self.plan is None else self.note
        self.report(name, f"{result}{note}")
        write_ignored(str(name), before, new)

    def report(self, name: Name, result: str) -> None:
        """Report the result of a write, with the change if it is not stored.

        In another format than a table, the end of the command writes all changes.
        """
        if self.output in TABLES:
            write_line(f"{name} {result}")
            for action in self.actions:
                if _name(action) == str(name):
                    write_differences(action.diff, indent="  ")


class _Change(msgspec.Struct, frozen=True):
    """The result of a dry run in JSON: the changes of the command, and the plan that follows."""

    actions: tuple[Action, ...]
    plan: Plan | UnsetType = UNSET


def _name(action: Action) -> str:
    return f"{action.kind.rpartition('.')[2]}/{action.key}"


def check_dry_run(*, dry_run: bool, controller: str | None, output: str) -> None:
    """Raise `UsageError` if an option of a dry run is given without one."""
    if output != TABLE and not dry_run:
        raise UsageError("--output is the format of a dry run: it needs --dry-run")
    if controller is not None and not dry_run:
        raise UsageError("--controller shows what follows a change: it needs --dry-run")


@asynccontextmanager
async def writing(
    stores: StoreOptions, *, dry_run: bool, controller: str | None = None, output: str = TABLE
) -> AsyncIterator[Writing]:
    """Connect, and yield the writes; the end of a dry run shows them, and what follows."""
    check_dry_run(dry_run=dry_run, controller=controller, output=output)
    async with connect(stores.nats) as nats:
        if not dry_run:
            yield Writing(nats.connection, output)
            return
        from natsctl.core.plan.stores import planned  # noqa: PLC0415 - only for a dry run

        plan = planned(nats=nats, kube=None)
        target = Writing(nats.connection, output, plan)
        yield target
        if controller is None:
            write_result(_Change(target.actions), output, names=map(_name, target.actions))
            return
        from natsctl.cli.plan import exit_with_plan, plan_here, write_plan  # noqa: PLC0415 - heavy
        from natsctl.controller.slots import only_primary  # noqa: PLC0415 - likewise

        logging.getLogger("natsctl").setLevel(logging.CRITICAL)
        loaded = load_controller(controller)
        bucket = getattr(only_primary(type(loaded)).kind, "bucket", "")
        keys = {one.key for one in target.actions if _name(one) == f"{bucket}/{one.key}"}
        others = len(keys) < len(target.actions)
        made = await plan_here(stores, loaded, () if others else keys, after=plan)
        change = _Change(target.actions, made.plan)
        write_result(change, output, names=map(_name, target.actions))
        if output in TABLES:
            write_plan(made, output)
        exit_with_plan(made.plan, exit_code=False)


_OF_ONE_OBJECT = (
    *(UsageError, NotFoundError, ConflictError, InvalidObjectError, InvalidKeyError),
    TooLargeError,
)
"""Errors that don't keep a command from writing its other objects."""


async def _tried(name: str, work: Awaitable[object]) -> int:
    try:
        await work
    except NatsctlError as error:
        if isinstance(error, StoreError) and not isinstance(error, _OF_ONE_OBJECT):
            raise
        report_error(f"{name}: {error}" if name else str(error))
        return exit_status(error)
    return 0


@app.add(
    """natsctl put greetings/shop '{"spec": {"text": "hi"}}'""",
    "natsctl put settings motd 'Closed on Sunday' --create-bucket",
    object_="@BUCKET/KEY | The object: BUCKET/KEY, or BUCKET KEY",
    value="@VALUE | JSON, YAML or text; - reads standard input",
    last="@VALUE | ",
    file="-f FILE | File with the value",
    create="Store it only if the key does not exist",
    revision="REVISION>=1 | Store it only if this is the newest revision",
    raw="Store it exactly as given",
)
async def put(  # noqa: C901 - one straight line
    stores: StoreOptions,
    *,
    object_: str,
    value: str | None = None,
    last: str | None = None,
    file: str | None = None,
    create: bool = False,
    revision: int | None = None,
    raw: bool = False,
    create_bucket: CreateBucket = False,
    validate: Checked = Validate.STRICT,
    dry_run: DryRun = False,
    controller: Then = None,
    output: OutputOption = TABLE,
) -> None:
    """Store a whole object.

    VALUE replaces the desired state; natsctl keeps status, finalizers and bookkeeping.
    """
    if create and revision is not None:
        raise UsageError("--create and --revision exclude each other")
    words = [word for word in (object_, value, last) if word is not None]
    count = 1 if "/" in object_ else 2
    name, given = parse_name(words[:count]), words[count:]
    if len(given) > 1:
        raise UsageError(f"{name} has several values: quote a value with spaces")
    if given == ["-"]:
        given, file = [], file or "-"
    if bool(given) == (file is not None):
        raise UsageError("give one of VALUE, -f FILE and - for standard input")
    data = given[0].encode() if file is None else values.read_bytes(file)
    new = data if raw else values.parse_value(data, file=file or "")
    key, version = name.key, None

    async with writing(stores, dry_run=dry_run, controller=controller, output=output) as target:
        store = await target.store(name.bucket, create=create_bucket)
        name = Name(getattr(store.kind, "bucket", name.bucket), key)  # if a kind was named
        if not raw:
            validator = await Validator.of(target.connection, name.bucket, validate)
            version = validator.check(key, new)
            validator.check_new(key, new)

        def combine(current: Stored | None) -> bytes:
            if create and current is not None:
                raise ConflictError(f"{key} exists in {name.bucket}")
            if revision is not None and current is None:
                raise NotFoundError(f"{name.bucket} has no {key}")
            if current is not None and revision not in (None, current.revision):
                raise ConflictError(f"{key} is at revision {current.revision}, not at {revision}")
            if raw:
                return data
            desired = with_version(current, new, version)
            return replaced(current, values.keep_reserved(current, desired))

        await target.write(store, name, combine, new=b"" if raw else new)


@app.add(
    "natsctl apply -f shop.yaml",
    "natsctl apply -f manifests/ -f extra.json --create-bucket",
    "natsctl get greetings -o yaml | sed s/hi/hello/ | natsctl apply -f -",
    "natsctl apply -f shop.yaml --dry-run -c controllers.greetings:Greetings",
)
async def apply(
    stores: StoreOptions,
    *,
    file: Files,
    create_bucket: CreateBucket = False,
    validate: Checked = Validate.STRICT,
    dry_run: DryRun = False,
    controller: Then = None,
    output: OutputOption = TABLE,
) -> None:
    """Apply objects from files.

    Each document names a bucket and a key. Each of its fields, such as the spec, replaces the whole
    field of the object; other fields stay, and labels and annotations are merged. If a document is
    invalid, nothing is written.
    """
    read_in = values.read_documents(file)
    async with writing(stores, dry_run=dry_run, controller=controller, output=output) as target:
        buckets = dict.fromkeys(name.bucket for name, _ in read_in)
        opened = {one: await target.store(one, create=create_bucket) for one in buckets}
        checks = {one: await Validator.of(target.connection, one, validate) for one in buckets}
        versions: list[int | None] = []
        statuses: list[int] = []
        for name, new in read_in:
            try:
                versions.append(checks[name.bucket].check(name.key, new))
            except InvalidObjectError as error:
                report_error(f"{name}: {error}")
                statuses.append(exit_status(error))
        exit_with(statuses)

        async def apply_one(name: Name, new: NewValue, version: int | None) -> None:
            def combine(current: Stored | None) -> bytes:
                if current is None:
                    checks[name.bucket].check_new(name.key, new)
                return values.apply(current, with_version(current, new, version))

            await target.write(opened[name.bucket], name, combine, new=new)

        for (name, new), version in zip(read_in, versions, strict=True):
            statuses.append(await _tried(str(name), apply_one(name, new, version)))
        exit_with(statuses)


@app.add(
    "natsctl delete greetings shop market",
    "natsctl delete greetings/shop routes/shop --wait --wait-timeout 60",
    "natsctl delete sites -l tier=edge,!kept",
    "natsctl delete greetings --all --yes",
    all_="Delete all keys of BUCKET, the only word then",
    wait="Wait until the objects are gone",
    wait_timeout="SECONDS>=0 | Maximum time to wait, in seconds; implies --wait",
)
async def delete(
    stores: StoreOptions,
    *,
    objects: Objects,
    selector: Labels = "",
    all_: bool = False,
    yes: Yes = False,
    wait: bool = False,
    wait_timeout: float | None = None,
    dry_run: DryRun = False,
    controller: Then = None,
    output: OutputOption = TABLE,
) -> None:
    """Delete objects.

    An object with finalizers is marked as deleted. It's gone when each controller has cleaned up
    and has removed its finalizer.
    """
    every = "; --all is for every key of a bucket"
    selection = Selection.of(objects, selector, whole=all_, otherwise=every)
    waits = not dry_run and (wait or wait_timeout is not None)
    statuses: list[int] = []
    async with writing(stores, dry_run=dry_run, controller=controller, output=output) as target:

        async def delete_one(bucket: Bucket, key: str) -> None:
            document = object_in((await BucketStore(bucket).find(key)).value)
            store = await target.store(bucket.name, bytes if document is None else Object)
            marked = (await delete_object(store, key)).stored is not None
            finalizers = ", ".join(documents.finalizers_of(document or {}))
            held = f"marked deleted{target.note}, held by {finalizers}"
            target.report(Name(bucket.name, key), held if marked else f"deleted{target.note}")

        deleted: list[tuple[Bucket, set[str]]] = []
        for source, keys in await selection.open(target.connection):
            if not keys:
                nothing = "nothing in bucket {} matches" if selector else "bucket {} is empty"
                return write_notice(nothing.format(source.name))
            if all_:
                confirm(f"Delete all {len(keys)} keys of {source.name}?", yes=yes or dry_run)
            results = {key: await _tried("", delete_one(source, key)) for key in keys}
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


# ---- differences, with the exit codes of kubectl

DIFFERENT, TROUBLE = 1, 2


@app.add(
    "natsctl diff -f greetings.yaml",
    "natsctl get greetings -o yaml | sed s/hi/hello/ | natsctl diff -f -",
)
async def diff(options: NatsOptions, *, file: Files) -> None:
    """Show what natsctl apply would change.

    Exit codes: 0 if nothing differs, 1 if something differs, 2 or more after an error.
    """
    different = False
    try:
        read_in = values.read_documents(file)
        async with connect_to(options) as connection:
            for given, new in read_in:
                bucket = await existing_bucket(connection, given.bucket)
                name = Name(bucket.name, given.key)
                current = await read(BucketStore(bucket), name.key)
                value = values.apply(current, new)
                if current is None or value != current.value:
                    different = True
                    before = None if current is None else _shown(name, current.value)
                    write_unified(str(name), before, _shown(name, value))
    except NatsctlError as error:
        report(error)
        raise typer.Exit(max(TROUBLE, exit_status(error))) from error
    if different:
        raise typer.Exit(DIFFERENT)


def _shown(name: Name, value: bytes) -> dict[str, object]:
    shown = described(name.bucket, Message(name.key, 0, value, marker=None, created=""))
    del shown["revision"]
    metadata = shown.get("metadata")
    if isinstance(metadata, dict):
        shown["metadata"] = dict(sorted(metadata.items()))
    return shown


# ---- labels and annotations

_CHANGE = re.compile(r"[^=]+=.*|[^=]+-", re.DOTALL)


def _add_metadata_command(  # noqa: C901 - one straight line
    name: str, field: str, verb: str, *examples: str
) -> None:
    async def change(  # noqa: C901 - likewise
        stores: StoreOptions,
        *,
        words: list[str],
        selector: Labels = "",
        overwrite: bool = False,
        dry_run: DryRun = False,
    ) -> None:
        numbered = (number for number, word in enumerate(words) if _CHANGE.fullmatch(word))
        first = next(numbered, None)
        if first is None:
            raise UsageError("nothing is to be changed: give NAME=TEXT, or NAME- to remove one")
        changes: dict[str, str | None] = {}
        for word in words[first:]:
            one, equals, rest = word.partition("=")
            if not equals and not word.endswith("-"):
                raise UsageError(f"{word!r} is neither NAME=TEXT nor NAME-: objects come first")
            changes[one if equals else word[:-1]] = rest if equals else None
        if field == "labels":
            Selector.of({one: text or "" for one, text in changes.items()})  # raises for no label
        selection = Selection.of(words[:first], selector, otherwise="; or --selector")
        removed = field == "labels" and not any(text is not None for text in changes.values())
        done = f"un{verb}" if removed else verb  # kubectl has no word for a removed annotation

        async def change_one(target: Writing, name: Name) -> None:
            def combine(current: Stored | None) -> bytes:
                if current is None:
                    raise NotFoundError(f"{name.bucket} has no {name.key}")
                document = object_in(current.value)
                if document is None:
                    raise UsageError(f"{name} has no metadata: it isn't an object")
                present: Any = documents.metadata_of(document).get(field) or {}
                for one, text in changes.items():
                    if one in present and text not in (None, present[one]) and not overwrite:
                        raise NatsctlError(
                            f"{one!r} already has a value ({present[one]}), and --overwrite is not "
                            "given"
                        )
                wanted = {
                    one: text for one, text in changes.items() if text is not None or one in present
                }
                return values.apply(current, {"metadata": {field: wanted}})

            store = await target.store(name.bucket)
            seen = await read(store, name.key)
            rewritten = await rewrite(store, name.key, combine, seen=seen)
            unchanged = rewritten.base is None
            target.report(name, f"not {verb}" if unchanged else f"{done}{target.note}")

        async with writing(stores, dry_run=dry_run) as target:
            statuses: list[int] = []
            for source, keys in await selection.open(target.connection):
                if not keys:
                    return write_notice(f"nothing in bucket {source.name} matches")
                for key in keys:
                    name = Name(source.name, key)
                    statuses.append(await _tried(str(name), change_one(target, name)))
            return exit_with(statuses)

    change.__doc__ = f"Set or remove {field} of objects."
    app.add(
        *examples,
        called=name,
        words="@BUCKET/KEY NAME=TEXT | BUCKET/KEY, or BUCKET KEY, or BUCKET with --selector; then "
        "NAME=TEXT to set, NAME- to remove",
        overwrite="Change what has another text already",
    )(change)


_add_metadata_command(
    *("label", "labels", "labeled", "natsctl label sites/a tier=edge"),
    "natsctl label sites -l tier=edge region=eu tier-",
    "natsctl label sites a tier=core --overwrite --dry-run",
)
_add_metadata_command(
    *("annotate", "annotations", "annotated", "natsctl annotate sites/a owner=ann"),
    "natsctl annotate sites a owner-",
)


# ---- earlier revisions


@app.add(
    "natsctl rollback greetings/shop --dry-run",
    "natsctl rollback greetings shop --to 3",
    to="REVISION>=1 | Revision to restore; else the one before",
)
async def rollback(
    stores: StoreOptions,
    *,
    object_: OneObject,
    to: int | None = None,
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
        name = Name(bucket.name, name.key)
        messages = await BucketStore(bucket).messages(name.key)
        known = messages
        if to is not None or not messages:
            known = [message_at(bucket.name, messages, name.key, to or 0)]
        newest = messages[-1]
        current = None if newest.marker else Stored(name.key, newest.revision, newest.value)
        for message in reversed(known):
            try:
                value = restored_value(name, current, message)
                break
            except UsageError:  # it's deleted, invalid, or as the object is now
                if to is not None:
                    raise
        else:
            raise NotFoundError(f"{name} has no other revision that can be restored")

        def restore(stored: Stored | None) -> bytes:
            if stored != current:
                raise ConflictError(f"{name} was changed in the meantime: nothing was stored")
            return value

        note = f", as it was at revision {message.revision}"
        await target.write(await target.store(bucket.name), name, restore, note=note)
