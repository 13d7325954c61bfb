"""`natsctl get`, `history` and `wait`: what is stored, and what will be."""

import asyncio
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Annotated

from natsctl.cli.command import App, Labels, Objects, OneObject
from natsctl.cli.output import (
    JSON,
    TABLE,
    TABLES,
    UPDATED,
    VALUE,
    Entries,
    output_option,
    parse_format,
    write_json,
    write_rows,
    write_table,
    write_value,
)
from natsctl.cli.terminal import flush, write_line, write_notice
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
from natsctl.model.store import Applied, Batch, Deleted, Listed, Listing, Stored, WatchEvent
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
AGAIN_S = 1.0  # after a server did not answer a watch
ADDED, DELETED = "added", "deleted"

_PATTERN = re.compile(r"(\*|[-/_=a-zA-Z0-9]+)(\.(\*|[-/_=a-zA-Z0-9]+))*(\.>)?|>")


@app.add(
    "natsctl get",
    "natsctl get sites -l tier=edge,!retired --sort-by spec.replicas",
    "natsctl get greetings/shop -o yaml",
    "natsctl get greetings -w -o jsonpath='{.key} {.status.ready}'",
    object_="@BUCKET/KEY | The object, or a bucket; without it, all buckets",
    watch="-w | Show the objects, then their changes",
    keys="PATTERN | Only keys that match; * matches one token, > the remaining tokens",
    sort_by="PATH | Sort by a field, not by key",
    revision="REVISION>=1 | The object as it was at this revision",
)
async def get(
    options: NatsOptions,
    *,
    object_: list[str] | None = None,
    watch: bool = False,
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
    if watch and (not words or sort_by is not None or revision is not None):
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
        columns: Columns = {}
        if output in TABLES:
            columns = await declared_columns(source.connection, source.name)
        entries = Entries(source.name, output, columns, watched=watch)
        if watch:
            store = BucketStore(source, keys=name.key if name else pattern)
            await _watch(store, labels, entries)
        elif name is not None:
            await _show(source, name.key, revision, entries)
        else:
            await _list(source, pattern, labels, order, entries)


async def _list_buckets(options: NatsOptions, output: str) -> None:
    async with connect(options) as connection:
        names = await bucket_names(connection)
        try:
            schemas = await published_schemas(connection)
        except StoreError:  # the user may lack the permission to read schemas
            schemas = []
    kinds = {name: [one.kind for one in schemas if one.bucket == name] for name in names}
    write_rows(
        [{"bucket": name, "kinds": kinds[name]} for name in names],
        output,
        names=names,
        headings=("BUCKET", "KINDS"),
        rows=[(name, ", ".join(kinds[name])) for name in names],
        nothing="there are no buckets yet",
    )


async def _list(
    source: Bucket, pattern: str, labels: Selector, order: FieldPath | None, entries: Entries
) -> None:
    store, found = BucketStore(source, keys=pattern), False
    if order is None and isinstance(parse_format(entries.output), str):
        # the server counts the keys of a pattern one by one
        whole = pattern == ">"
        size = (await source.state()).subjects if whole else await source.count([pattern])
    else:
        size = 0
    if size > SORTED_MAX:
        async for page in _pages(store, labels):  # only their keys stay in memory
            entries.write(page)
            flush()
            found = True
        listed = True
    else:
        messages = await store.listing()
        matching = [message for message in messages if matches(message.value, labels)]
        if order is not None:
            matching.sort(key=lambda message: order.sort_key(described(source.name, message)))
        entries.write(matching)
        found, listed = bool(matching), bool(messages)
    entries.end()
    if not found and entries.output in TABLES:
        nothing = f"nothing in bucket {source.name} matches"
        write_notice(nothing if listed or pattern != ">" else f"bucket {source.name} is empty")


async def _pages(store: BucketStore, labels: Selector) -> AsyncIterator[list[Message]]:
    """Yield the entries that match, `PAGE` at once or as many as came in `PAGE_S` seconds."""
    loop, page, due, seen = asyncio.get_running_loop(), list[Message](), math.inf, set[str]()
    async with store.read() as events:
        async for event in events:
            for key, stored in _states(event):
                if stored is not None and key not in seen and matches(stored.value, labels):
                    seen.add(key)
                    page.append(store.dated(stored))
                    due = min(due, loop.time() + PAGE_S)
            if page and (isinstance(event, Listed) or len(page) >= PAGE or loop.time() > due):
                yield page
                page, due = [], math.inf
            if isinstance(event, Listed):
                return


async def _show(source: Bucket, key: str, revision: int | None, entries: Entries) -> None:
    store = BucketStore(source)
    if revision is not None:
        message = message_at(source.name, await store.messages(key), key, revision)
    else:
        try:
            message = await store.find(key)
        except NotFoundError as error:
            hint = ""
            if error.deleted_at is not None:
                deleted = f"at revision {error.deleted_at}"
                hint = f" {deleted}; see natsctl history {source.name}/{key}"
            else:
                with suppress(StoreError):
                    keys = await key_names(source, ">")
                    hint = did_you_mean(key, keys) if len(keys) <= KEYS_MAX else ""
            raise NotFoundError(f"{error}{hint}") from error
    if entries.output == JSON:
        write_json(described(source.name, message))
    elif entries.output == TABLE and object_in(message.value) is None:
        write_value(message.value)
    else:
        entries.write([message])


async def _watch(store: BucketStore, labels: Selector, entries: Entries) -> None:
    """Write the objects as added, then their changes.

    A change is none if labels match neither state.
    """
    begun = False
    async with aclosing(_changes(store)) as batches:
        async for changes in batches:
            events: list[str] = []
            messages: list[Message] = []
            for _, before, after in changes:
                was, is_now = (one and matches(one.value, labels) for one in (before, after))
                shown = after or before
                if shown is not None and (was or is_now):
                    events.append((UPDATED if was else ADDED) if is_now else DELETED)
                    messages.append(store.dated(shown))
            entries.write(messages, events)
            if not (messages or begun):
                write_notice(f"nothing in bucket {store.kind.name} matches so far")
            flush()
            begun = True


Changed = tuple[str, Stored | None, Stored | None]
"""A key with its state before and after it changed; None if it has none."""


def _states(event: WatchEvent) -> list[tuple[str, Stored | None]]:
    match event:
        case Applied(stored):
            return [(stored.key, stored)]
        case Batch(states):
            return [(stored.key, stored) for stored in states]
        case Deleted(key):
            return [(key, None)]
        case _:
            return []


async def _changes(store: BucketStore) -> AsyncGenerator[list[Changed], None]:
    """Yield what is stored, all of it at once, and then every change, through reconnects."""
    known: dict[str, Stored] = {}
    while True:
        listed: dict[str, Stored | None] | None = {}
        with suppress(WatchBrokenError, StoreTimeoutError):
            async with store.watch() as events:
                async for event in events:
                    new = _states(event)
                    if isinstance(event, Listing):
                        listed = {}
                    if listed is not None:
                        listed.update(new)
                        if not isinstance(event, Listed):
                            continue
                        new, listed = sorted((dict.fromkeys(known) | listed).items()), None
                    changes = []
                    for key, after in new:
                        before = known.pop(key, None)
                        known |= {} if after is None else {key: after}
                        changes += [(key, before, after)] if before != after else []
                    yield changes
        await asyncio.sleep(AGAIN_S)


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
    if output not in TABLES:
        messages = [message for message, _ in shown]
        entries = Entries(source.name, output)
        operations = ["deleted" if message.marker else "put" for message in messages]
        entries.write(messages, operations, [str(message.revision) for message in messages])
        entries.end()
        return
    rows = []
    for message, fields in shown:
        operation, generation, value = "deleted", NONE, NONE
        if not message.marker:
            operation, spec = "put", message.value
            (generation,) = cells_of(message, ["GENERATION"], now)
            document = object_in(spec) or {}
            with suppress(InvalidObjectError):  # it is nested too deeply to be encoded
                spec = documents.render(document["spec"]) if "spec" in document else spec
            value = preview(spec)
        changed = [preview((fields or NONE).encode())] if changes else []
        times = [generation, age(message.created, now)]
        rows.append([str(message.revision), operation, *times, *changed, value])
    changed = ["CHANGED"] if changes else []
    write_table(["REVISION", "OPERATION", "GENERATION", "AGE", *changed, "VALUE"], rows)


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


async def until(
    bucket: Bucket, keys: Collection[str], met: Met, limit_s: float | None, *, done: str = ""
) -> None:
    """Wait until each key meets a condition, and write a line for each if *done* isn't empty.

    Raises `StoreTimeoutError` after *limit_s* seconds; 0 checks the stored objects once.
    """
    left, due = set(keys), set(keys)
    if not left:
        return
    store = BucketStore(bucket, keys=">" if len(left) > 1 else next(iter(left)))
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s or None), aclosing(_changes(store)) as batches:
            async for changes in batches:
                states = {key: after for key, _, after in changes}
                for key in sorted(due or left & states.keys()):
                    state = states.get(key)
                    if met(None if state is None else object_in(state.value) or {}):
                        left.discard(key)
                        if done:
                            write_line(f"{bucket.name}/{key} {done}")
                due.clear()
                if not left or limit_s == 0:
                    break
    if left:
        names = ", ".join(f"{bucket.name}/{key}" for key in sorted(left))
        raise StoreTimeoutError(f"timed out waiting for the condition on {names}")


def _condition(text: str) -> Met:
    kind, _, rest = text.partition("=")
    if text in ("create", "delete"):
        return lambda document: (document is None) is (text == "delete")
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
