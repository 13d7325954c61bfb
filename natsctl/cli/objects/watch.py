"""`natsctl watch`: shows objects, and follows their changes."""

import asyncio
import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.objects.buckets import (
    BucketArgument,
    KeysOption,
    SelectorOption,
    check_pattern,
    columns_for,
    open_bucket,
)
from natsctl.cli.output.printing import (
    Output,
    OutputOption,
    column_widths,
    fitted,
    write_json,
    write_row,
    write_value,
    write_yaml,
)
from natsctl.cli.output.terminal import write_line, write_notice
from natsctl.core.informer import Informer
from natsctl.errors import UsageError
from natsctl.jetstream.bucket import Message
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import BucketStore
from natsctl.model.keys import check_key
from natsctl.model.schemas.field_paths import Columns
from natsctl.model.selectors import Selector
from natsctl.model.store import Change
from natsctl.operate.buckets import matches
from natsctl.operate.entries import cells_of, described, described_raw, headings_of

ADDED, UPDATED, DELETED = "added", "updated", "deleted"

app = App()


@app.add(
    "natsctl watch greetings",
    "natsctl watch greetings shop -o yaml",
    "natsctl watch sites -l tier=edge -o json | jq .status",
)
@connected
async def watch(
    options: NatsOptions,
    *,
    bucket: BucketArgument,
    key: Annotated[str | None, typer.Argument(help="Only this key", metavar="KEY")] = None,
    selector: SelectorOption = "",
    keys: KeysOption = ">",
    once: Annotated[
        bool, typer.Option("--once", help="Show the existing objects and exit")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show objects and their changes.

    The existing objects come first, as added. An object whose labels stop matching is shown as
    deleted. The table also has the columns that the controller declares for its kind. With -o json,
    each change is one line. After a lost connection, the command reconnects
    and shows the objects that changed in the meantime.
    """
    if "/" in bucket:
        if key is not None:
            raise UsageError(f"{bucket} is an object already: leave {key} out")
        bucket, key = bucket.split("/", 1)
    if key is not None and keys != ">":
        raise UsageError("KEY and --keys exclude each other")
    pattern = check_pattern(keys) if key is None else check_key(key)
    labels = Selector.parse(selector)
    async with open_bucket(options, bucket) as source:
        store = BucketStore(source, keys=pattern)
        informer: Informer[Any] = Informer(store, store.kind)
        changes: asyncio.Queue[Change[Any]] = asyncio.Queue()
        task = asyncio.create_task(informer.run())
        try:
            await informer.cache.synced.wait()
            async with informer.subscribe(changes.put_nowait):
                columns = await columns_for(source, output)
                writer = _EventWriter(bucket, store, labels, output, columns)
                if not writer.write([changes.get_nowait() for _ in range(changes.qsize())]):
                    write_notice(f"nothing in bucket {bucket} matches so far")
                while not once:
                    writer.write([await changes.get()])
        finally:
            task.cancel()
            await asyncio.wait((task,))


class _EventWriter:
    """Writes changes as events. A table keeps the column widths of its first rows."""

    def __init__(
        self, bucket: str, store: BucketStore, labels: Selector, output: Output, columns: Columns
    ) -> None:
        self._bucket = bucket
        self._store = store
        self._labels = labels
        self._output = output
        self._columns = columns
        self._headings: list[str] = []
        self._widths: list[int] = []

    def write(self, changes: Sequence[Change[Any]]) -> bool:
        """Write the changes of objects whose labels match; return whether there was one."""
        events = list(self._events(changes))
        if self._output not in {Output.TABLE, Output.WIDE}:
            for event, message in events:
                self._write_event(event, message)
        elif events:
            self._write_rows(events)
        sys.stdout.flush()
        return bool(events)

    def _events(self, changes: Sequence[Change[Any]]) -> Iterator[tuple[str, Message]]:
        for change in changes:
            event, stored = self._event(change), change.after or change.before
            if event and stored is not None:
                yield event, self._store.dated(stored)

    def _event(self, change: Change[Any]) -> str:
        """Return the event of a change; empty if the labels matched neither before nor after."""
        before, after = (
            stored is not None and matches(stored.value, self._labels)
            for stored in (change.before, change.after)
        )
        if after:
            return UPDATED if before else ADDED
        return DELETED if before else ""

    def _write_rows(self, events: Sequence[tuple[str, Message]]) -> None:
        first = not self._headings
        if first:
            messages = [message for _, message in events]
            wide = self._output is Output.WIDE
            self._headings = headings_of(messages, wide=wide, declared=self._columns)
        now = datetime.now(UTC)
        rows = [
            [event.upper(), *cells_of(message, self._headings, now, declared=self._columns)]
            for event, message in events
        ]
        if sys.stdout.isatty() and self._output is Output.TABLE:
            width = shutil.get_terminal_size().columns
            rows = fitted(["EVENT", *self._headings], rows, self._columns, width=width)
        if first:
            self._widths = column_widths([UPDATED, *self._headings], rows)
            write_row(["EVENT", *self._headings], self._widths)
        for cells in rows:
            write_row(cells, self._widths)

    def _write_event(self, event: str, message: Message) -> None:
        match self._output:
            case Output.JSON:
                write_json(described_raw(self._bucket, message, event), indent=-1)
            case Output.YAML:
                write_line("---")
                write_yaml([{"event": event, **described(self._bucket, message)}])
            case Output.NAME:
                write_line(message.key)
            case _:
                write_value(message.value)
