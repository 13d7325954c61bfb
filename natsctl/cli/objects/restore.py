"""`natsctl restore`: writes a backup into a bucket, and verifies the result."""

from typing import Annotated, BinaryIO

import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.exit_codes import CONFLICT, FAILED, exit_status, report_error
from natsctl.cli.objects.archives import check_contents, open_archive
from natsctl.cli.output.terminal import progress_bar, write_line, write_notice
from natsctl.errors import ConflictError, NatsctlError, StoreError, StoreMissingError, UsageError
from natsctl.jetstream.backup import backup
from natsctl.jetstream.backup.archive import Contents, entries
from natsctl.jetstream.backup.backup import Restored, RestoredKey
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.connection.connection import Connection, connect
from natsctl.jetstream.connection.options import NatsOptions

KEYS_MAX = 10
"""Keys with errors that are reported one by one."""

app = App()


@app.add(
    "natsctl restore greetings.backup.gz",
    "natsctl restore greetings.backup --bucket greetings-2",
    "natsctl restore greetings.backup --merge",
    "natsctl restore greetings.backup --overwrite",
)
@connected
async def restore(
    options: NatsOptions,
    *,
    file: Annotated[
        str,
        typer.Argument(
            help="File of natsctl backup; - reads standard input",
            metavar="FILE",
        ),
    ],
    bucket: Annotated[
        str | None,
        typer.Option(
            "--bucket", metavar="BUCKET", help="Target bucket [default: the bucket of the backup]"
        ),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Add missing keys to a bucket that is not empty")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Add missing keys, and replace keys that differ")
    ] = False,
) -> None:
    """Restore a bucket from a file.

    The file is checked before anything is written. A bucket that does not exist is created with the
    options of the backup. A bucket that has keys is refused without --merge or --overwrite. Keys
    that are not in the backup stay. If a restore was interrupted, continue it with --merge.

    The exit code is 4 if keys with other values than the backup were kept.
    """
    if merge and overwrite:
        raise UsageError("--merge and --overwrite exclude each other")
    with open_archive(file) as archive:
        contents = check_contents(archive, file)
        name = bucket or contents.header.bucket
        async with connect(options) as connection:
            target = await _target(connection, name, contents, empty=not (merge or overwrite))
            restored = await _restore(target, archive, contents, overwrite=overwrite)
            wrong_keys = await _verify(target, restored)
    raise typer.Exit(_report(name, restored, wrong_keys))


async def _target(connection: Connection, name: str, contents: Contents, *, empty: bool) -> Bucket:
    """Return the bucket, which is created if it is missing.

    Raises `ConflictError` if it must be *empty* and is not.
    """
    bucket = Bucket(connection, name)
    try:
        options = await backup.options_of(bucket)
    except StoreMissingError:
        return await backup.make_bucket(connection, name, contents.header.options)
    if empty and not await backup.is_empty(bucket):
        raise ConflictError(
            f"bucket {name} is not empty: --merge adds the keys that it does not have, "
            "--overwrite replaces those that differ as well"
        )
    for difference in backup.differences(contents.header.options, options):
        write_notice(f"bucket {name} keeps its options: {difference}")
    return bucket


async def _restore(
    bucket: Bucket, archive: BinaryIO, contents: Contents, *, overwrite: bool
) -> Restored:
    total = contents.trailer.keys
    with progress_bar("restoring", total) as progress:
        try:
            return await backup.restore(
                bucket, entries(archive, contents.trailer), overwrite=overwrite, step=progress.step
            )
        except StoreError as error:
            raise NatsctlError(
                f"{progress.done} of {total} keys were restored: {error}; continue with --merge"
            ) from error


async def _verify(bucket: Bucket, restored: Restored) -> list[str]:
    """Return the keys whose values differ from those that were written."""
    with progress_bar("verifying", len(restored.revisions)) as progress:
        return await backup.verify(bucket, restored.revisions, progress.step)


def _report(name: str, restored: Restored, wrong_keys: list[str]) -> int:
    """Write the results, and return the exit status."""
    counts = (f"{restored.counts[outcome]} {outcome.value}" for outcome in RestoredKey)
    write_line(f"{name}: {', '.join(counts)}")
    for key in sorted(restored.failures)[:KEYS_MAX]:
        report_error(f"{key}: {restored.failures[key]}")
    if len(restored.failures) > KEYS_MAX:
        report_error(f"and {len(restored.failures) - KEYS_MAX} more keys were not restored")
    if wrong_keys:
        examples = ", ".join(wrong_keys[:KEYS_MAX])
        report_error(f"{len(wrong_keys)} keys of {name} do not have the restored value: {examples}")
        return FAILED
    if restored.failures:
        return min(map(exit_status, restored.failures.values()))
    if restored.counts[RestoredKey.KEPT]:
        write_notice(
            "keys that were kept have other values than the backup: --overwrite replaces them"
        )
        return CONFLICT
    return 0
