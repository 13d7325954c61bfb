"""`natsctl delete`: objects, which finalizers may hold."""

import asyncio
from typing import Annotated

import typer

from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.framework.exit_codes import say_error, status
from natsctl.cli.objects.buckets import BucketArgument, bucket_of
from natsctl.cli.output.entries import object_in
from natsctl.cli.output.printing import line
from natsctl.cli.output.terminal import confirm, say
from natsctl.core.objects.finalizers import delete as delete_object
from natsctl.errors import (
    ConflictError,
    NotFoundError,
    StoreTimeoutError,
    UsageError,
    WatchBrokenError,
)
from natsctl.jetstream.bucket.browse import BucketStore
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model import documents
from natsctl.model.keys import check_key
from natsctl.model.objects import Object
from natsctl.model.store import Applied, Deleted, IllegalKey, Listed, Listing

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl delete greetings shop market",
        "natsctl delete greetings shop --wait --wait-timeout 60",
        "natsctl delete greetings --all --yes",
    ),
)
@connected
async def delete(
    options: NatsOptions,
    *,
    bucket: BucketArgument,
    keys: Annotated[list[str] | None, typer.Argument(help="keys of it", metavar="KEY")] = None,
    all_: Annotated[bool, typer.Option("--all", help="everything in the bucket")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="until they are gone")] = False,
    wait_timeout: Annotated[
        float | None, typer.Option(help="seconds to wait at most", metavar="SECONDS", min=0)
    ] = None,
) -> None:
    """Delete objects; finalizers hold them until they are released.

    An object with finalizers is marked deleted. It goes when whoever put them there has cleaned
    up and released it.
    """
    if bool(keys) == all_:
        raise UsageError("give keys, or --all for everything in the bucket")
    named = [check_key(key) for key in keys or ()]
    async with bucket_of(options, bucket) as found:
        if all_:
            named = [message.key for message in await BucketStore(found).listing()]
            if not named:
                return say(f"bucket {bucket} is empty")
            confirm(f"Delete all {len(named)} keys of {bucket}?", yes=yes)
        failures = [await _delete(found, key) for key in named]
        if wait or wait_timeout is not None:
            gone = [key for key, failure in zip(named, failures, strict=True) if not failure]
            await _wait(found, set(gone), wait_timeout)
    worst = next((code for code in failures if code), 0)
    if worst:
        raise typer.Exit(worst)
    return None


async def _delete(bucket: Bucket, key: str) -> int:
    """Delete the object, or mark it; return the exit status that this asks for."""
    try:
        message = await BucketStore(bucket).find(key)
        document = object_in(message.value)
        store = BucketStore(bucket, bytes if document is None else Object)
        gone = (await delete_object(store, key)).stored is None
    except (NotFoundError, ConflictError) as error:
        say_error(str(error))
        return status(error)
    if gone:
        line(f"{bucket.name}/{key} deleted")
    else:
        holding = ", ".join(documents.finalizers_of(document or {}))
        line(f"{bucket.name}/{key} marked deleted, held by {holding}")
    return 0


async def _wait(bucket: Bucket, keys: set[str], timeout_s: float | None) -> None:
    """Wait until none of the keys exists."""
    try:
        async with asyncio.timeout(timeout_s):
            while keys:
                try:
                    await _watch_go(bucket, keys)
                except WatchBrokenError:
                    continue
    except TimeoutError:
        raise StoreTimeoutError(
            f"{', '.join(sorted(keys))} of {bucket.name} still there after {timeout_s:g} s: "
            "see its FINALIZERS with natsctl get -o wide"
        ) from None


async def _watch_go(bucket: Bucket, keys: set[str]) -> None:
    """Take out of *keys* what is gone, until nothing is left in it."""
    seen: set[str] = set()
    pattern = ">" if len(keys) > 1 else next(iter(keys))
    async with BucketStore(bucket, keys=pattern).watch() as events:
        async for event in events:
            match event:
                case Applied(stored):
                    seen.add(stored.key)
                case Deleted(key):
                    seen.discard(key)
                    keys.discard(key)
                case Listed():
                    keys &= seen
                case Listing():
                    seen.clear()
                case IllegalKey():
                    pass
            if not keys:
                return
