"""Backs up a bucket, its options and all values, to a file and restores it."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from itertools import islice
from typing import Any, BinaryIO

import msgspec

from natsctl.errors import (
    ConflictError,
    NatsctlError,
    NotFoundError,
    StoreError,
    StoreTimeoutError,
    WatchBrokenError,
)
from natsctl.jetstream.backup.archive import VERSION, ArchiveEntry, ArchiveWriter, Header
from natsctl.jetstream.bucket.browse import BucketStore, repeated
from natsctl.jetstream.bucket.bucket import Bucket, create_stream
from natsctl.jetstream.bucket.codec import prefix_of, stream_of
from natsctl.jetstream.connection.connection import Connection
from natsctl.model.keys import check_key
from natsctl.model.store import Applied, Deleted, IllegalKey, Listed, Stored

ATTEMPTS = 5  # to write a key
AT_ONCE = 64  # concurrent writes
HELD_MAX_BYTES = 16 * 1024 * 1024  # size of the values in concurrent writes

OPTIONS = (
    *("description", "metadata", "max_msgs_per_subject", "max_age", "max_bytes", "max_msg_size"),
    *("storage", "num_replicas", "compression", "placement", "republish", "discard"),
    *("allow_msg_ttl", "subject_delete_marker_ttl", "duplicate_window"),
    *("allow_direct", "allow_rollup_hdrs", "deny_delete", "deny_purge"),
)
"""The fields of a stream's configuration that a backup contains."""

Step = Callable[[], None]


class BackupResult(msgspec.Struct, frozen=True):
    """The result of a backup: the number of keys, and names in the bucket that are not keys."""

    keys: int
    illegal: tuple[str, ...]


class RestoredKey(Enum):
    """The result of a restore for one key."""

    CREATED = "created"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"
    KEPT = "kept"


class Restored(msgspec.Struct):
    """The results of a restore.

    `revisions` contains the revision and checksum of each key that has the value of the backup.
    """

    counts: dict[RestoredKey, int]
    failures: dict[str, NatsctlError]
    revisions: dict[str, tuple[int, bytes]]


async def back_up(bucket: Bucket, file: BinaryIO, step: Step) -> BackupResult:
    """Write the bucket to *file*, and call *step* for each key.

    Memory grows with the number of keys, not with their values. Restarts if the watch breaks.
    """
    created = datetime.now(UTC).isoformat(timespec="seconds")
    options = await options_of(bucket)
    header = Header(natsctl_backup=VERSION, bucket=bucket.name, created=created, options=options)
    archive = ArchiveWriter(file, header)
    return await repeated(partial(_back_up, bucket, archive, step), archive.restart)


async def _back_up(bucket: Bucket, archive: ArchiveWriter, step: Step) -> BackupResult:
    store = BucketStore(bucket)
    illegal: dict[str, None] = {}
    async with store.read() as events:
        async for event in events:
            match event:
                case Applied(stored):
                    archive.add(_entry(store, stored))
                    step()
                case Deleted(key):
                    archive.remove(key)
                case IllegalKey(key, _, exists) if exists:
                    illegal[key] = None
                case Listed():
                    break
                case _:
                    pass
    return BackupResult(archive.finish(), tuple(illegal))


def _entry(store: BucketStore, stored: Stored) -> ArchiveEntry:
    written, ttl = store.dated(stored).created, store.ttl(stored.key)
    return ArchiveEntry.of(stored.key, stored.revision, stored.value, written=written, ttl=ttl)


async def options_of(bucket: Bucket) -> dict[str, object]:
    """Return the bucket's options, without the metadata that the server adds."""
    info = await bucket.connection.api(f"STREAM.INFO.{bucket.stream}")
    options = {name: info["config"][name] for name in OPTIONS if name in info["config"]}
    metadata = options.pop("metadata", None) or {}
    kept = {name: text for name, text in metadata.items() if not name.startswith("_nats.")}
    return {**options, "metadata": kept} if kept else options


async def make_bucket(connection: Connection, name: str, options: Mapping[str, object]) -> Bucket:
    """Create a bucket with these options, with one replica if the server rejects more."""
    accepted = {option: options[option] for option in OPTIONS if option in options}
    config = {**accepted, "name": stream_of(name), "subjects": [f"{prefix_of(name)}>"]}
    replicas = options.get("num_replicas")
    replica_count = replicas if isinstance(replicas, int) else 1
    try:
        await create_stream(connection, config, replicas=replica_count)
    except StoreTimeoutError:
        raise
    except StoreError:
        if replica_count == 1:
            raise
        await create_stream(connection, config, replicas=1)
    return Bucket(connection, name)


async def is_empty(bucket: Bucket) -> bool:
    """Return whether the bucket has no value; delete markers do not count."""
    async with BucketStore(bucket).read() as events:
        async for event in events:
            match event:
                case Applied():
                    return False
                case Listed():
                    return True
                case _:
                    pass
    raise WatchBrokenError(f"the listing of {bucket.name} ended too early")


async def restore(
    bucket: Bucket, entries: Iterable[ArchiveEntry], *, overwrite: bool, step: Step
) -> Restored:
    """Write the entries into the bucket, and call *step* for each.

    Keeps a key that has another value, unless *overwrite*. Does not change other keys. The result
    has the entries that cannot be stored. Raises an error only if the connection fails.
    """
    store = BucketStore(bucket)
    restored = Restored(dict.fromkeys(RestoredKey, 0), {}, {})

    async def write(entry: ArchiveEntry) -> None:
        try:
            value = entry.value
            outcome, revision = await _write(store, entry, value, overwrite=overwrite)
        except StoreTimeoutError:
            raise
        except NatsctlError as error:
            if not bucket.connection.connected:
                raise
            restored.failures[entry.key] = error
        else:
            restored.counts[outcome] += 1
            if outcome is not RestoredKey.KEPT:
                restored.revisions[entry.key] = revision, _checksum(value)
        step()

    remaining = iter(entries)
    while batch := _batch(remaining):
        await _run_all(write(entry) for entry in batch)
    return restored


async def verify(bucket: Bucket, written: dict[str, tuple[int, bytes]], step: Step) -> list[str]:
    """Return the keys that do not have the value that was written.

    Keys that other clients have written or deleted since are not included. Removes from *written*
    each key that the bucket has, or whose deletion it reports.
    """
    wrong: list[str] = []
    return await repeated(partial(_verify, bucket, written, wrong, step))


async def _verify(
    bucket: Bucket, written: dict[str, tuple[int, bytes]], wrong: list[str], step: Step
) -> list[str]:
    async with BucketStore(bucket).read() as events:
        async for event in events:
            match event:
                case Applied(stored) if stored.key in written:
                    revision, checksum = written.pop(stored.key)
                    if stored.revision == revision and _checksum(stored.value) != checksum:
                        wrong.append(stored.key)
                    step()
                case Deleted(key):
                    written.pop(key, None)
                case Listed():
                    break
                case _:
                    pass
    return sorted((*wrong, *written))


def _checksum(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


def _batch(remaining: Iterable[ArchiveEntry]) -> list[ArchiveEntry]:
    """Return the next entries: `AT_ONCE` at most, and none after `HELD_MAX_BYTES` are exceeded."""
    batch, size = list[ArchiveEntry](), 0
    for entry in islice(remaining, AT_ONCE):
        batch.append(entry)
        size += len(entry.text or entry.base64 or "")
        if size > HELD_MAX_BYTES:
            break
    return batch


async def _run_all(work: Iterable[Any]) -> None:
    """Run all coroutines to their end, then raise the first failure."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for failure in results:
        if isinstance(failure, BaseException):
            raise failure


async def _write(
    store: BucketStore, entry: ArchiveEntry, value: bytes, *, overwrite: bool
) -> tuple[RestoredKey, int]:
    """Store the entry by compare-and-set; return the outcome and the newest revision."""
    key, base, outcome = check_key(entry.key), 0, RestoredKey.CREATED
    for attempt in range(ATTEMPTS):
        try:
            return outcome, await store.write(key, value, revision=base, ttl=entry.ttl)
        except StoreTimeoutError:
            if attempt == ATTEMPTS - 1:
                raise  # else the next attempt shows whether the value was stored
        except ConflictError:
            pass
        try:
            current = await store.get(key)
        except NotFoundError as missing:
            base, outcome = missing.deleted_at or 0, RestoredKey.CREATED
            continue
        if current.value == value:
            return RestoredKey.UNCHANGED, current.revision
        if not overwrite:
            return RestoredKey.KEPT, current.revision
        base, outcome = current.revision, RestoredKey.REPLACED
    raise ConflictError(f"{key} of {store.kind.name} is written by other clients all the time")


def differences(saved: Mapping[str, object], actual: Mapping[str, object]) -> list[str]:
    """Return a phrase for each option of a bucket that differs from the option in its backup."""
    return [
        f"{option} is {actual.get(option)!r}, in the backup {saved[option]!r}"
        for option in OPTIONS
        if option in saved and saved[option] != actual.get(option)
    ]
