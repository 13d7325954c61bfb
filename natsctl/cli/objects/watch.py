"""`natsctl watch`: objects, and every change of them."""

import asyncio
import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.objects.buckets import (
    BucketArgument,
    KeysOption,
    SelectorOption,
    bucket_of,
    matches,
    pattern_of,
)
from natsctl.cli.output.entries import columns, described, described_raw, row
from natsctl.cli.output.printing import (
    Output,
    OutputOption,
    column_widths,
    line,
    write_json,
    write_row,
    write_value,
    write_yaml,
)
from natsctl.cli.output.terminal import say
from natsctl.core.cache.informer import Informer
from natsctl.errors import UsageError
from natsctl.jetstream.bucket.browse import BucketStore
from natsctl.jetstream.bucket.bucket import Message
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.keys import check_key
from natsctl.model.selectors import Selector
from natsctl.model.store import Change

ADDED, UPDATED, DELETED = "added", "updated", "deleted"

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl watch greetings",
        "natsctl watch greetings shop -o yaml",
        "natsctl watch sites -l tier=edge -o json | jq .status",
    ),
)
@connected
async def watch(
    options: NatsOptions,
    *,
    bucket: BucketArgument,
    key: Annotated[str | None, typer.Argument(help="only this key", metavar="KEY")] = None,
    selector: SelectorOption = "",
    keys: KeysOption = ">",
    once: Annotated[bool, typer.Option("--once", help="only what there is now")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show objects, and every change of them.

    What there is comes first, as added. An object whose labels stop matching counts as deleted.
    With -o json each change is one line. A lost connection is waited for, and nothing is missed.
    """
    if key is not None and keys != ">":
        raise UsageError("KEY and --keys exclude each other")
    pattern = pattern_of(keys) if key is None else check_key(key)
    chosen = Selector.parse(selector)
    async with bucket_of(options, bucket) as found:
        store = BucketStore(found, keys=pattern)
        informer: Informer[Any] = Informer(store, store.kind)
        changes: asyncio.Queue[Change[Any]] = asyncio.Queue()
        following = asyncio.create_task(informer.run())
        try:
            await informer.cache.complete.wait()
            with informer.subscribe(changes.put_nowait):
                shown = _Shown(bucket, store, chosen, output)
                if not shown.show([changes.get_nowait() for _ in range(changes.qsize())]):
                    say(f"nothing in bucket {bucket} matches so far")
                while not once:
                    shown.show([await changes.get()])
        finally:
            following.cancel()
            await asyncio.wait((following,))


class _Shown:
    """Writes changes as they come; a table keeps the widths that its first rows asked for."""

    def __init__(self, bucket: str, store: BucketStore, selector: Selector, output: Output) -> None:
        self._bucket = bucket
        self._store = store
        self._selector = selector
        self._output = output
        self._headings: list[str] = []
        self._widths: list[int] = []

    def show(self, changes: list[Change[Any]]) -> bool:
        """Write the changes that are meant; say whether there is one."""
        told: list[tuple[str, Message]] = []
        for change in changes:
            event, stored = self._event(change), change.after or change.before
            if event and stored is not None:
                told.append((event, self._store.dated(stored)))
        if self._output not in {Output.TABLE, Output.WIDE}:
            for event, message in told:
                self._write(event, message)
        elif told:
            self._table(told)
        sys.stdout.flush()
        return bool(told)

    def _event(self, change: Change[Any]) -> str:
        before, after = (
            stored is not None and matches(stored.value, self._selector)
            for stored in (change.before, change.after)
        )
        if after:
            return UPDATED if before else ADDED
        return DELETED if before else ""

    def _table(self, told: list[tuple[str, Message]]) -> None:
        first = not self._headings
        if first:
            messages = [message for _, message in told]
            self._headings = columns(messages, wide=self._output is Output.WIDE)
        now = datetime.now(UTC)
        rows = [[event.upper(), *row(message, self._headings, now)] for event, message in told]
        if first:
            self._widths = column_widths([UPDATED, *self._headings], rows)
            write_row(["EVENT", *self._headings], self._widths)
        for cells in rows:
            write_row(cells, self._widths)

    def _write(self, event: str, message: Message) -> None:
        match self._output:
            case Output.JSON:
                write_json(described_raw(self._bucket, message, event=event), indent=-1)
            case Output.YAML:
                line("---")
                write_yaml([{"event": event, **described(self._bucket, message)}])
            case Output.NAME:
                line(message.key)
            case _:
                write_value(message.value)
