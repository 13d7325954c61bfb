"""`natsctl get`, `history` and `wait`: what is stored, and what will be."""

import asyncio
import math
import re
import textwrap
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from natsctl.cli.command import App, Labels, Objects, OneObject
from natsctl.cli.output import (
    JSON,
    TABLE,
    TABLES,
    VALUE,
    YAML,
    CustomColumns,
    Rows,
    json_text,
    output_option,
    parse_format,
    write_entries,
    write_json,
    write_result,
    write_table,
    write_value,
)
from natsctl.cli.terminal import flush, write_line, write_notice, write_text
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import (
    InvalidObjectError,
    NotFoundError,
    StoreError,
    StoreTimeoutError,
    UsageError,
    WatchBrokenError,
)
from natsctl.jetstream.bucket import Bucket, Message
from natsctl.jetstream.connection import connect
from natsctl.jetstream.feed import names as key_names
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import BucketStore, bucket_names
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.readiness import has_condition
from natsctl.model.schemas.field_paths import Columns, FieldPath
from natsctl.model.selectors import Selector
from natsctl.model.store import Applied, Batch, Change, Deleted, Listed, Listing
from natsctl.operate.buckets import (
    Selection,
    declared_columns,
    matches,
    message_at,
    open_bucket,
    published_schemas,
)
from natsctl.operate.objects import (
    NONE,
    age,
    cells_of,
    described,
    desired_changes,
    object_in,
    parse_name,
    preview,
)
from natsctl.operate.pauses import duration_in

app = App()

SORTED_MAX = 10_000  # objects that are shown in the order of their keys
PAGE, PAGE_S = 500, 0.1  # of more objects: those that are shown at once, and how long they wait
KEYS_MAX = 5000  # of a bucket, up to which a similar key is suggested
ADDED, UPDATED, DELETED = "added", "updated", "deleted"

_PATTERN = re.compile(r"(\*|[-/_=a-zA-Z0-9]+)(\.(\*|[-/_=a-zA-Z0-9]+))*(\.>)?|>")


class ShownBucket(msgspec.Struct, frozen=True):
    """A bucket, and the kinds that daemons have published for it."""

    bucket: str
    kinds: list[str]


@app.add(
    "natsctl get",
    "natsctl get sites -l tier=edge,!retired --sort-by spec.replicas",
    "natsctl get greetings/shop -o yaml",
    "natsctl get greetings -w -o jsonpath='{.key} {.status.ready}'",
    object_="@BUCKET/KEY | The object, or a bucket; without it, all buckets",
    watch="-w | Show the objects, then their changes",
    once="",
    keys="PATTERN | Only keys that match; * matches one token, > the remaining tokens",
    sort_by="PATH | Sort by a field, not by key",
    revision="REVISION>=1 | The object as it was at this revision",
)
async def get(
    options: NatsOptions,
    *,
    object_: list[str] | None = None,
    watch: bool = False,
    once: bool = False,
    selector: Labels = "",
    keys: str = "",
    sort_by: str | None = None,
    revision: int | None = None,
    output: Annotated[str, output_option(VALUE)] = TABLE,
) -> None:
    """Show one object, the objects of a bucket, or the buckets.

    READY is Pending until the controller has observed the newest generation, Deleting while
    finalizers hold the object, and Paused while it is paused. AGE is that of the revision. PATH is
    a field as -o json shows it. More than 10,000 objects come in the order of their revisions.
    """
    words = object_ or []
    alone = len(words) == 1 and "/" not in words[0]
    if (selector or keys or sort_by is not None) and not alone:
        raise UsageError("--selector, --keys and --sort-by are for the objects of a bucket")
    if (watch or once) and (not words or sort_by is not None or revision is not None):
        raise UsageError("--watch is for a bucket or an object, without --sort-by and --revision")
    if revision is not None and (alone or not words):
        raise UsageError("--revision is for one object: name it")
    if keys and not _PATTERN.fullmatch(keys):
        raise UsageError(f"--keys {keys!r} is not a pattern of keys: write sites.* or sites.> or >")
    labels, pattern = Selector.parse(selector), keys or ">"
    order = None if sort_by is None else FieldPath.parse(sort_by)
    if not words:
        await _list_buckets(options, output)
        return
    name = None if alone else parse_name(words)
    async with open_bucket(options, name.bucket if name else words[0]) as source:
        if watch or once:
            await _watch(source, name.key if name else pattern, labels, output, once=once)
        elif name is not None:
            await _show(source, name.key, revision, output)
        else:
            await _list(source, pattern, labels, order, output)


async def _columns(bucket: Bucket, output: str) -> Columns:
    """Return the declared columns of a bucket's kinds if the format is a table of them."""
    return await declared_columns(bucket.connection, bucket.name) if output in TABLES else {}


async def _list_buckets(options: NatsOptions, output: str) -> None:
    async with connect(options) as connection:
        names = await bucket_names(connection)
        try:
            schemas = await published_schemas(connection)
        except StoreError:  # the user may lack the permission to read schemas
            schemas = []
    buckets = [
        ShownBucket(name, [schema.kind for schema in schemas if schema.bucket == name])
        for name in names
    ]
    rows = [[bucket.bucket, ", ".join(bucket.kinds) or NONE] for bucket in buckets]
    if not rows and output in TABLES:
        write_notice("there are no buckets yet")
        return
    write_result(buckets, output, names=names, table=lambda: write_table(["BUCKET", "KINDS"], rows))


async def _list(
    source: Bucket, pattern: str, labels: Selector, order: FieldPath | None, output: str
) -> None:
    if order is None and isinstance(parse_format(output), str):
        # the server counts the keys of a pattern one by one
        whole = pattern == ">"
        size = (await source.state()).subjects if whole else await source.count([pattern])
        if size > SORTED_MAX:
            await _stream(source, pattern, labels, output)
            return
    messages = await BucketStore(source, keys=pattern).listing()
    columns = await _columns(source, output)
    matching = [message for message in messages if matches(message.value, labels)]
    if order is not None:
        matching.sort(key=lambda message: order.sort_key(described(source.name, message)))
    if matching or output not in TABLES:
        write_entries(source.name, matching, output, columns=columns)
    elif messages or pattern != ">":
        write_notice(f"nothing in bucket {source.name} matches")
    else:
        write_notice(f"bucket {source.name} is empty")


async def _stream(source: Bucket, pattern: str, labels: Selector, output: str) -> None:
    """Write the entries of a large bucket as they come; only their keys stay in memory."""
    rows, last, some = Rows(output, await _columns(source, output)), "", False
    async for page in _pages(BucketStore(source, keys=pattern), labels):
        if output in TABLES:
            rows.write([("", message) for message in page])
        elif output == JSON:
            for message in page:
                write_text(f"{last}," if last else "[")
                last = textwrap.indent(json_text(described(source.name, message)), "  ")
        else:
            if some and output == YAML:
                write_line("---")
            write_entries(source.name, page, output)
        some = True
        flush()
    if output == JSON:
        write_text(f"{last}\n]" if last else "[]")
    elif not some and output in TABLES:
        write_notice(f"nothing in bucket {source.name} matches")


async def _pages(store: BucketStore, labels: Selector) -> AsyncIterator[list[Message]]:
    """Yield the entries that match, `PAGE` at once or as many as came in `PAGE_S` seconds."""
    loop, page, due, seen = asyncio.get_running_loop(), list[Message](), math.inf, set[str]()
    async with store.read() as events:
        async for event in events:
            states = event.states if isinstance(event, Batch) else []
            for stored in [event.stored] if isinstance(event, Applied) else states:
                if stored.key not in seen and matches(stored.value, labels):
                    seen.add(stored.key)
                    page.append(store.dated(stored))
                    due = min(due, loop.time() + PAGE_S)
            if page and (isinstance(event, Listed) or len(page) >= PAGE or loop.time() > due):
                yield page
                page, due = [], math.inf
            if isinstance(event, Listed):
                return


async def _show(source: Bucket, key: str, revision: int | None, output: str) -> None:
    store = BucketStore(source)
    if revision is None:
        try:
            message = await store.find(key)
        except NotFoundError as error:
            raise NotFoundError(f"{error}{await _hint(source, key, error)}") from error
    else:
        message = message_at(source.name, await store.messages(key), key, revision)
    columns = await _columns(source, output)
    if output == JSON:
        write_json(described(source.name, message))
    elif output == TABLE and object_in(message.value) is None:
        write_value(message.value)
    else:
        write_entries(source.name, [message], output, columns=columns)


async def _hint(bucket: Bucket, key: str, error: NotFoundError) -> str:
    if error.deleted_at is not None:
        return f" at revision {error.deleted_at}; see natsctl history {bucket.name}/{key}"
    try:
        keys = await key_names(bucket, ">")
    except StoreError:
        return ""
    return did_you_mean(key, keys) if len(keys) <= KEYS_MAX else ""


async def _watch(
    source: Bucket, pattern: str, labels: Selector, output: str, *, once: bool
) -> None:
    """Write the objects as added, then their changes; with *once*, the objects only."""
    from natsctl.core.informer import Informer  # noqa: PLC0415 - a third of a second

    store = BucketStore(source, keys=pattern)
    informer: Informer[Any] = Informer(store, store.kind)
    changes: asyncio.Queue[Change[Any]] = asyncio.Queue()
    task = asyncio.create_task(informer.run())
    try:
        await informer.table.synced.wait()
        async with informer.subscribe(changes.put_nowait):
            rows = Rows(output, await _columns(source, output), events=(UPDATED,))
            first = [changes.get_nowait() for _ in range(changes.qsize())]
            events = _events(first, store, labels)
            _write_events(source.name, events, output, rows)
            if not events:
                write_notice(f"nothing in bucket {source.name} matches so far")
            while not once:
                events = _events([await changes.get()], store, labels)
                _write_events(source.name, events, output, rows)
    finally:
        task.cancel()
        await asyncio.wait((task,))


def _events(
    changes: Sequence[Change[Any]], store: BucketStore, labels: Selector
) -> list[tuple[str, Message]]:
    """Return the events of changes; a change is none if labels match neither state."""
    events: list[tuple[str, Message]] = []
    for change in changes:
        before, after = (
            stored is not None and matches(stored.value, labels)
            for stored in (change.before, change.after)
        )
        stored = change.after or change.before
        if stored is not None and (before or after):
            event = (UPDATED if before else ADDED) if after else DELETED
            events.append((event, store.dated(stored)))
    return events


def _write_events(
    bucket: str, events: Sequence[tuple[str, Message]], output: str, rows: Rows
) -> None:
    chosen = parse_format(output)
    if output in TABLES:
        rows.write(events)
    for event, message in () if output in TABLES else events:
        if output == JSON:
            write_json(described(bucket, message, event), indent=-1)
        elif isinstance(chosen, CustomColumns):
            document = described(bucket, message, event)
            write_line("   ".join(path.text_in(document) for path in chosen.columns.values()))
        else:
            if output == YAML:
                write_line("---")
            write_entries(bucket, [message], output, events=[event])
    flush()


# ---- revisions


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


# ---- conditions, with the exit codes and messages of kubectl

Met = Callable[[Document | None], bool]
"""Whether an object, None if it doesn't exist, meets a condition."""


@app.add(
    "natsctl wait greetings/shop --for=condition=Ready --timeout=2m",
    "natsctl wait greetings/shop --for=jsonpath='{.spec.text}'=hi",
    "natsctl wait greetings -l tier=edge --for=delete",
    awaited="--for CONDITION | condition=TYPE[=STATUS], jsonpath={PATH}[=VALUE], create or delete",
    all_="All objects of the bucket",
    limit="--timeout TIME | Such as 90s or 2m; 0 checks once",
)
async def wait(
    options: NatsOptions,
    *,
    objects: Objects,
    awaited: str,
    selector: Labels = "",
    all_: bool = False,
    limit: str = "30s",
) -> None:
    """Wait until objects meet a condition.

    A condition counts when the controller has observed the newest generation. The exit code is 1 if
    the time is over first.
    """
    met = _condition(awaited)
    limit_s = 0.0 if limit in ("0", "0s") else duration_in(limit).total_seconds()
    selection = Selection.of(objects, selector, whole=all_, otherwise="; or --all, or --selector")
    async with connect(options) as connection:
        for source, keys in await selection.open(connection):
            if not keys and awaited != "delete":
                raise NotFoundError(f"no matching objects in {source.name}")
            if not (selector or all_ or awaited in ("delete", "create")):
                missing = sorted(set(keys) - await key_names(source, ">"))
                if missing:
                    raise NotFoundError(f"{source.name} has no {', '.join(missing)}")
            await until(source, keys, met, limit_s, done="condition met")


async def until(  # noqa: C901 - one case for each event
    bucket: Bucket, keys: Collection[str], met: Met, limit_s: float | None, *, done: str = ""
) -> None:
    """Wait until each key meets a condition, and write a line for each if *done* isn't empty.

    Raises `StoreTimeoutError` after *limit_s* seconds; 0 checks the stored objects once.
    """
    left = set(keys)

    async def follow() -> None:
        existing: dict[str, bytes] = {}
        listed = False
        pattern = ">" if len(left) > 1 else next(iter(left))
        async with BucketStore(bucket, keys=pattern).watch() as events:
            async for event in events:
                changed: Iterable[str] = ()
                match event:
                    case Applied() | Batch():
                        states = event.states if isinstance(event, Batch) else [event.stored]
                        existing.update((stored.key, stored.value) for stored in states)
                        changed = [stored.key for stored in states]
                    case Deleted(key):
                        existing.pop(key, None)
                        changed = [key]
                    case Listed():
                        listed, changed = True, sorted(left)
                    case Listing():
                        existing.clear()
                    case _:
                        pass
                for key in sorted(left.intersection(changed)) if listed else ():
                    value = existing.get(key)
                    if met(None if value is None else object_in(value) or {}):
                        left.discard(key)
                        if done:
                            write_line(f"{bucket.name}/{key} {done}")
                if not left or (limit_s == 0 and listed):
                    return

    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s or None):
            while left:
                with suppress(WatchBrokenError):
                    await follow()
                if limit_s == 0:
                    break
    if left:
        names = ", ".join(f"{bucket.name}/{key}" for key in sorted(left))
        raise StoreTimeoutError(f"timed out waiting for the condition on {names}")


def _condition(text: str) -> Met:
    kind, _, rest = text.partition("=")
    if text == "delete":
        return lambda document: document is None
    if text == "create":
        return lambda document: document is not None
    if kind == "condition" and rest:
        name, _, status = rest.partition("=")
        return lambda document: has_condition(document or {}, name, status or "True")
    if kind == "jsonpath" and rest:
        path, brace, tail = rest.rpartition("}")
        path, wanted = (f"{path}}}", tail) if brace else rest.partition("=")[::2]
        parsed = FieldPath.parse(path.strip("'"))
        expected = wanted.removeprefix("=").strip("'\"") if wanted else None

        def found(document: Document | None) -> bool:
            shown = parsed.text_in(document or {}, missing="")
            return bool(shown) if expected is None else shown == expected

        return found
    raise UsageError(
        f"--for {text!r} must be condition=TYPE, jsonpath={{PATH}}=VALUE, create or delete"
    )
