"""`natsctl wait` and `natsctl diff`, with the exit codes and messages of kubectl."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

import typer

from natsctl.cli.command import App, Files, Labels, Objects, exit_status, report
from natsctl.cli.output import write_unified
from natsctl.cli.terminal import write_line
from natsctl.cli.values import apply, read_documents
from natsctl.core.compare_and_set import read
from natsctl.errors import (
    NatsctlError,
    NotFoundError,
    StoreTimeoutError,
    UsageError,
    WatchBrokenError,
)
from natsctl.jetstream.bucket import Bucket, Message
from natsctl.jetstream.connection import connect
from natsctl.jetstream.feed import names as key_names
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import BucketStore
from natsctl.model.documents import Document
from natsctl.model.readiness import has_condition
from natsctl.model.schemas.field_paths import FieldPath
from natsctl.model.store import Applied, Batch, Deleted, Listed, Listing
from natsctl.operate.buckets import Selection, existing_bucket
from natsctl.operate.entries import described, object_in
from natsctl.operate.pauses import duration_in

app = App()

Met = Callable[[Document | None], bool]
"""Whether an object, None if it doesn't exist, meets a condition."""

DIFFERENT, TROUBLE = 1, 2  # exit statuses of `diff`


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
        documents = read_documents(file)
        async with connect(options) as connection:
            for document in documents:
                bucket = await existing_bucket(connection, document.bucket)
                current = await read(BucketStore(bucket), document.key)
                value = apply(current, document.new)
                if current is None or value != current.value:
                    different = True
                    before, after = (
                        None if stored is None else _shown(bucket.name, document.key, stored)
                        for stored in (None if current is None else current.value, value)
                    )
                    write_unified(f"{bucket.name}/{document.key}", before, after)
    except NatsctlError as error:
        report(error)
        raise typer.Exit(max(TROUBLE, exit_status(error))) from error
    if different:
        raise typer.Exit(DIFFERENT)


def _shown(bucket: str, key: str, value: bytes) -> dict[str, object]:
    shown = described(bucket, Message(key, 0, value, marker=None, created=""))
    del shown["revision"]
    metadata = shown.get("metadata")
    if isinstance(metadata, dict):
        shown["metadata"] = dict(sorted(metadata.items()))
    return shown
