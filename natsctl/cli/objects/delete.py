"""`natsctl delete`: deletes objects, and waits for their finalizers."""

import asyncio
from typing import Annotated

import typer

from natsctl.cli.framework.command import App, connected_to_stores
from natsctl.cli.framework.exit_codes import exit_status, exit_with, report_error
from natsctl.cli.framework.names import NamesArgument
from natsctl.cli.framework.options import StoreOptions
from natsctl.cli.objects.writing import (
    ChangeOutputOption,
    DryRun,
    DryRunOption,
    ThenPlanOption,
    WriteTarget,
)
from natsctl.cli.output.terminal import YesOption, confirm, write_notice
from natsctl.core.compare_and_set import delete as delete_object
from natsctl.errors import (
    ConflictError,
    NotFoundError,
    StoreTimeoutError,
    UsageError,
    WatchBrokenError,
)
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.store import BucketStore
from natsctl.model import documents
from natsctl.model.objects import Object
from natsctl.model.store import Applied, Batch, Deleted, IllegalKey, Listed, Listing
from natsctl.operate.buckets import existing_bucket
from natsctl.operate.entries import object_in
from natsctl.operate.names import parse_names

app = App()


@app.add(
    "natsctl delete greetings shop market",
    "natsctl delete greetings/shop routes/shop",
    "natsctl delete greetings shop --wait --wait-timeout 60",
    "natsctl delete greetings --all --yes",
    "natsctl delete greetings shop --dry-run -c controllers.greetings:Greetings",
)
@connected_to_stores
async def delete(
    stores: StoreOptions,
    *,
    objects: NamesArgument,
    all_: Annotated[
        bool, typer.Option("--all", help="Delete all keys of BUCKET, the only word then")
    ] = False,
    yes: YesOption = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the objects are gone")] = False,
    wait_timeout: Annotated[
        float | None,
        typer.Option(
            help="Maximum time to wait, in seconds; implies --wait [default: no limit]",
            metavar="SECONDS",
            min=0,
        ),
    ] = None,
    dry_run: DryRunOption = False,
    controller: ThenPlanOption = None,
    output: ChangeOutputOption = "text",
) -> None:
    """Delete objects.

    An object with finalizers is marked as deleted. It is gone when each controller has cleaned up
    and has removed its finalizer.

    With --dry-run, the deletions are shown and not carried out.
    """
    run = DryRun(dry_run, controller, stores, output)
    if all_ and (len(objects) > 1 or "/" in objects[0]):
        raise UsageError("--all deletes every key of a bucket: give the bucket alone")
    names = [] if all_ else parse_names(objects, otherwise="; --all is for every key of a bucket")
    waits = not dry_run and (wait or wait_timeout is not None)
    statuses: list[int] = []
    deleted: dict[str, set[str]] = {}
    async with run.writing() as target:
        wanted = [objects[0]] if all_ else list(dict.fromkeys(name.bucket for name in names))
        sources = {bucket: await existing_bucket(target.connection, bucket) for bucket in wanted}
        for bucket, source in sources.items():
            keys = [name.key for name in names if name.bucket == bucket]
            if all_:
                keys = [message.key for message in await BucketStore(source).listing()]
                if not keys:
                    return write_notice(f"bucket {source.name} is empty")
                confirm(f"Delete all {len(keys)} keys of {source.name}?", yes=yes or dry_run)
            results = [await _delete(target, source, key) for key in keys]
            statuses += results
            deleted[bucket] = {key for key, status in zip(keys, results, strict=True) if not status}
        for bucket, keys_left in deleted.items() if waits else ():
            await _wait(sources[bucket], keys_left, wait_timeout)
        return exit_with(statuses)


async def _delete(target: WriteTarget, bucket: Bucket, key: str) -> int:
    """Delete an object or mark it as deleted, and return the exit status."""
    try:
        message = await BucketStore(bucket).find(key)
        document = object_in(message.value)
        store = await target.store(bucket.name, bytes if document is None else Object)
        marked = (await delete_object(store, key)).stored is not None
    except (NotFoundError, ConflictError) as error:
        report_error(str(error))
        return exit_status(error)
    if marked:
        finalizers = ", ".join(documents.finalizers_of(document or {}))
        target.report(bucket.name, key, f"marked deleted{target.note}, held by {finalizers}")
    else:
        target.report(bucket.name, key, f"deleted{target.note}")
    return 0


async def _wait(bucket: Bucket, keys: set[str], timeout_s: float | None) -> None:
    """Wait until none of the keys exists; raises `StoreTimeoutError`."""
    try:
        async with asyncio.timeout(timeout_s):
            while keys:
                try:
                    await _watch_deletions(bucket, keys)
                except WatchBrokenError:
                    continue
    except TimeoutError:
        raise StoreTimeoutError(
            f"{', '.join(sorted(keys))} of {bucket.name} not deleted within {timeout_s:g} s: "
            "natsctl get -o wide shows the finalizers"
        ) from None


async def _watch_deletions(bucket: Bucket, keys: set[str]) -> None:
    """Remove deleted keys from *keys* until *keys* is empty."""
    existing: set[str] = set()
    pattern = ">" if len(keys) > 1 else next(iter(keys))
    async with BucketStore(bucket, keys=pattern).watch() as events:
        async for event in events:
            match event:
                case Applied(stored):
                    existing.add(stored.key)
                case Batch(states):
                    existing.update(stored.key for stored in states)
                case Deleted(key):
                    existing.discard(key)
                    keys.discard(key)
                case Listed():
                    keys &= existing
                case Listing():
                    existing.clear()
                case IllegalKey():
                    pass
            if not keys:
                return
