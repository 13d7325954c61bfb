"""`natsctl restore`: a whole bucket, from a file."""

from typing import Annotated, BinaryIO

import typer

from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.framework.exit_codes import CONFLICT, FAILED, say_error, status
from natsctl.cli.objects.archives import opened, read
from natsctl.cli.output.printing import line
from natsctl.cli.output.terminal import Progress, say
from natsctl.errors import ConflictError, NatsctlError, StoreError, StoreMissingError, UsageError
from natsctl.jetstream.bucket import backup
from natsctl.jetstream.bucket.archive import Contents, entries
from natsctl.jetstream.bucket.backup import Outcome, Restored
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.connection.connection import Connection, connect
from natsctl.jetstream.connection.options import NatsOptions

SHOWN_MAX = 10  # keys of which each failure is a line

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl restore greetings.backup.gz",
        "natsctl restore greetings.backup --bucket greetings-2",
        "natsctl restore greetings.backup --merge",
        "natsctl restore greetings.backup --overwrite",
    ),
)
@connected
async def restore(
    options: NatsOptions,
    *,
    file: Annotated[
        str, typer.Argument(help="what natsctl backup wrote; - is standard input", metavar="FILE")
    ],
    bucket: Annotated[
        str | None,
        typer.Option("--bucket", metavar="BUCKET", help="another bucket than that of the backup"),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="add missing keys to a bucket that is not empty")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="add missing keys, and replace those that differ")
    ] = False,
) -> None:
    """Write a backup into a bucket.

    The file is checked before anything is written. A bucket that does not exist is made with the
    options of the backup; one that has keys is refused without --merge or --overwrite. Neither
    touches a key that is not in the backup. An interrupted restore goes on with --merge. Exits
    with 4 if keys were kept that have other values than the backup.
    """
    if merge and overwrite:
        raise UsageError("--merge and --overwrite exclude each other")
    with opened(file) as archive:
        found = read(archive, file)
        name = bucket or found.header.bucket
        async with connect(options) as connection:
            target = await _target(connection, name, found, empty=not (merge or overwrite))
            done = await _restored(target, archive, found, overwrite=overwrite)
            wrong = await _verified(target, done)
    raise typer.Exit(_report(name, done, wrong))


async def _target(connection: Connection, name: str, found: Contents, *, empty: bool) -> Bucket:
    """Return the bucket, made with the options of the backup if it is missing.

    Raises `ConflictError` if it has to be *empty* and is not.
    """
    bucket = Bucket(connection, name)
    try:
        options = await backup.options_of(bucket)
    except StoreMissingError:
        return await backup.make_bucket(connection, name, found.header.options)
    if empty and not await backup.is_empty(bucket):
        raise ConflictError(
            f"bucket {name} is not empty: --merge adds the keys that it does not have, "
            "--overwrite replaces those that differ as well"
        )
    for difference in backup.differences(found.header.options, options):
        say(f"bucket {name} keeps its options: {difference}")
    return bucket


async def _restored(
    bucket: Bucket, archive: BinaryIO, found: Contents, *, overwrite: bool
) -> Restored:
    with Progress("restoring", found.trailer.keys) as progress:
        try:
            return await backup.restore(
                bucket, entries(archive, found.trailer), overwrite=overwrite, step=progress.step
            )
        except StoreError as error:
            raise NatsctlError(
                f"{progress.done} of {found.trailer.keys} keys were restored: {error}; "
                "go on with --merge"
            ) from error


async def _verified(bucket: Bucket, done: Restored) -> list[str]:
    with Progress("verifying", len(done.revisions)) as progress:
        return await backup.verify(bucket, done.revisions, progress.step)


def _report(name: str, done: Restored, wrong: list[str]) -> int:
    """Write the results, and return the exit status."""
    line(f"{name}: " + ", ".join(f"{done.counts[each]} {each.value}" for each in Outcome))
    for key in sorted(done.failures)[:SHOWN_MAX]:
        say_error(f"{key}: {done.failures[key]}")
    if len(done.failures) > SHOWN_MAX:
        say_error(f"and {len(done.failures) - SHOWN_MAX} more keys were not restored")
    if wrong:
        shown = ", ".join(wrong[:SHOWN_MAX])
        say_error(f"{len(wrong)} keys of {name} do not hold what was written: {shown}")
        return FAILED
    if done.failures:
        return min(map(status, done.failures.values()))
    if done.counts[Outcome.KEPT]:
        say("keys that were kept have other values than the backup: --overwrite replaces them")
        return CONFLICT
    return 0
