"""`natsctl get`: shows one object, the objects of a bucket, or the buckets."""

import asyncio
import math
import re
import shutil
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer

from natsctl.cli.arguments import KeysOption, SelectorOption
from natsctl.cli.command import App, connected
from natsctl.cli.output import (
    JSON,
    TABLE,
    VALUE,
    WIDE,
    YAML,
    CustomColumns,
    JsonPath,
    column_widths,
    fitted,
    json_text,
    output_option,
    parse_format,
    write_entries,
    write_json,
    write_result,
    write_row,
    write_table,
    write_value,
)
from natsctl.cli.terminal import flush, write_line, write_notice, write_text
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import NotFoundError, StoreError, UsageError
from natsctl.jetstream.bucket import Bucket, Message
from natsctl.jetstream.connection import connect
from natsctl.jetstream.feed import names as key_names
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import BucketStore, bucket_names
from natsctl.model.schemas.field_paths import Columns, FieldPath
from natsctl.model.selectors import Selector
from natsctl.model.store import Applied, Batch, Change, Listed
from natsctl.operate.buckets import (
    declared_columns,
    matches,
    message_at,
    open_bucket,
    published_schemas,
    selected,
)
from natsctl.operate.entries import NONE, cells_of, described, headings_of, object_in
from natsctl.operate.names import parse_name

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
)
@connected
async def get(
    options: NatsOptions,
    *,
    object_: Annotated[
        list[str] | None,
        typer.Argument(
            help="The object, or a bucket; without it, all buckets",
            metavar="BUCKET/KEY",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show the objects, then their changes")
    ] = False,
    once: Annotated[bool, typer.Option("--once", hidden=True)] = False,
    selector: SelectorOption = "",
    keys: KeysOption = ">",
    sort_by: Annotated[
        str | None, typer.Option("--sort-by", metavar="PATH", help="Sort by a field, not by key")
    ] = None,
    revision: Annotated[
        int | None,
        typer.Option(min=1, metavar="REVISION", help="The object as it was at this revision"),
    ] = None,
    output: Annotated[str, output_option(VALUE)] = TABLE,
) -> None:
    """Show one object, the objects of a bucket, or the buckets.

    READY is Pending until the controller has observed the newest generation, Deleting while
    finalizers hold the object, and Paused while it is paused. AGE is that of the revision. PATH is
    a field as -o json shows it. More than 10,000 objects come in the order of their revisions.
    """
    words = object_ or []
    alone = len(words) == 1 and "/" not in words[0]
    one_bucket = selector or keys != ">" or sort_by is not None
    if one_bucket and not alone:
        raise UsageError("--selector, --keys and --sort-by are for the objects of a bucket")
    if (watch or once) and (not words or sort_by is not None or revision is not None):
        raise UsageError("--watch is for a bucket or an object, without --sort-by and --revision")
    if revision is not None and (alone or not words):
        raise UsageError("--revision is for one object: name it")
    labels, pattern = Selector.parse(selector), check_pattern(keys)
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


def check_pattern(keys: str) -> str:
    """Return the pattern; raises `UsageError` if it cannot match a key."""
    if not _PATTERN.fullmatch(keys):
        raise UsageError(f"--keys {keys!r} is not a pattern of keys: write sites.* or sites.> or >")
    return keys


async def _columns(bucket: Bucket, output: str) -> Columns:
    """Return the declared columns of a bucket's kinds if the format is a table of them."""
    if output in (TABLE, WIDE):
        return await declared_columns(bucket.connection, bucket.name)
    return {}


async def _list_buckets(options: NatsOptions, output: str) -> None:
    async with connect(options) as connection:
        names = await bucket_names(connection)
        try:
            schemas = await published_schemas(connection)
        except StoreError:  # the user may lack the permission to read schemas
            schemas = []
    kinds = {name: [schema.kind for schema in schemas if schema.bucket == name] for name in names}
    buckets = [ShownBucket(name, kinds[name]) for name in names]
    rows = [[bucket.bucket, ", ".join(bucket.kinds) or NONE] for bucket in buckets]
    if not rows and output in (TABLE, WIDE):
        write_notice("there are no buckets yet")
        return
    write_result(buckets, output, names=names, table=lambda: write_table(["BUCKET", "KINDS"], rows))


async def _list(
    source: Bucket, pattern: str, labels: Selector, order: FieldPath | None, output: str
) -> None:
    bucket, parsed = source.name, parse_format(output)
    in_parts = order is None and not isinstance(parsed, CustomColumns | JsonPath)
    if in_parts and await _size(source, pattern) > SORTED_MAX:
        await _stream(source, pattern, labels, output)
        return
    messages = await BucketStore(source, keys=pattern).listing()
    columns = await _columns(source, output)
    matching = selected(messages, labels)
    if order is not None:
        matching.sort(key=lambda message: order.sort_key(described(bucket, message)))
    if matching or output not in (TABLE, WIDE):
        write_entries(bucket, matching, output, columns=columns)
    elif messages or pattern != ">":
        write_notice(f"nothing in bucket {bucket} matches")
    else:
        write_notice(f"bucket {bucket} is empty")


async def _size(source: Bucket, pattern: str) -> int:
    """Return the number of names; the server counts those of a pattern one by one."""
    return (await source.state()).subjects if pattern == ">" else await source.count([pattern])


async def _stream(source: Bucket, pattern: str, labels: Selector, output: str) -> None:
    """Write the entries of a large bucket as they come; only their keys stay in memory.

    A table keeps the widths of its first page.
    """
    rows, last, some = _Rows(output, await _columns(source, output)), "", False
    async for page in _pages(BucketStore(source, keys=pattern), labels):
        if output in (TABLE, WIDE):
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
    elif not some and output in (TABLE, WIDE):
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
    """Write one entry; a value that is not an object is no table, and written as it is."""
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


# ---- changes


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
            columns = await _columns(source, output)
            writer = _EventWriter(source.name, store, labels, output, columns)
            if not writer.write([changes.get_nowait() for _ in range(changes.qsize())]):
                write_notice(f"nothing in bucket {source.name} matches so far")
            while not once:
                writer.write([await changes.get()])
    finally:
        task.cancel()
        await asyncio.wait((task,))


class _EventWriter:
    """Writes changes as events. A table keeps the column widths of its first rows."""

    def __init__(
        self, bucket: str, store: BucketStore, labels: Selector, output: str, columns: Columns
    ) -> None:
        self._bucket, self._store, self._labels = bucket, store, labels
        self._output, self._format = output, parse_format(output)
        self._rows = _Rows(output, columns, events=True)

    def write(self, changes: Sequence[Change[Any]]) -> bool:
        """Write the changes of objects whose labels match; return whether there was one."""
        events = list(self._events(changes))
        if self._format in (TABLE, WIDE):
            self._rows.write(events)
        else:
            for event, message in events:
                self._write_event(event, message)
        sys.stdout.flush()
        return bool(events)

    def _events(self, changes: Sequence[Change[Any]]) -> Iterator[tuple[str, Message]]:
        """Yield the events of changes; a change is none if labels match neither state."""
        for change in changes:
            before, after = (
                stored is not None and matches(stored.value, self._labels)
                for stored in (change.before, change.after)
            )
            stored = change.after or change.before
            if stored is not None and (before or after):
                event = (UPDATED if before else ADDED) if after else DELETED
                yield event, self._store.dated(stored)

    def _write_event(self, event: str, message: Message) -> None:
        if self._format == JSON:
            write_json(described(self._bucket, message, event), indent=-1)
        elif isinstance(self._format, CustomColumns):
            document = described(self._bucket, message, event)
            write_line("   ".join(path.text_in(document) for path in self._format.columns.values()))
        else:
            if self._format == YAML:
                write_line("---")
            write_entries(self._bucket, [message], self._output, event=lambda _: event)


class _Rows:
    """Writes the rows of a table in parts, with the columns that the first part needs."""

    def __init__(self, output: str, columns: Columns, *, events: bool = False) -> None:
        self._wide, self._columns, self._events = output == WIDE, columns, events
        self._headings: list[str] = []
        self._widths: list[int] = []

    def write(self, entries: Sequence[tuple[str, Message]]) -> None:
        """Write entries, each with its event."""
        first = not self._headings
        if first and entries:
            messages = [message for _, message in entries]
            self._headings = headings_of(messages, wide=self._wide, declared=self._columns)
        now = datetime.now(UTC)
        head = ["EVENT", *self._headings] if self._events else self._headings
        rows = [
            [
                *([event.upper()] if self._events else []),
                *cells_of(message, self._headings, now, declared=self._columns),
            ]
            for event, message in entries
        ]
        if sys.stdout.isatty() and not self._wide:
            rows = fitted(head, rows, self._columns, width=shutil.get_terminal_size().columns)
        if first and rows:
            longest = [UPDATED, *self._headings] if self._events else head
            self._widths = column_widths(longest, rows)
            write_row(head, self._widths)
        for cells in rows:
            write_row(cells, self._widths)
