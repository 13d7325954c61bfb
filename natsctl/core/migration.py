"""Rewrites stored objects in the form of the newest version of their type.

Each object is written by compare-and-set, and only if its stored version is older. So a migration
can be stopped and continued, and it loses no change of another client.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from enum import StrEnum

import msgspec

from natsctl.core.compare_and_set import rewrite
from natsctl.core.task_group import together
from natsctl.errors import (
    ConflictError,
    InvalidObjectError,
    NewerVersionError,
    NotFoundError,
    StoreError,
)
from natsctl.model import documents
from natsctl.model.schemas.versions import stored_version
from natsctl.model.store import Store, Stored, listed

WRITERS = 16
ROUNDS = 10  # of ten conflicts each, until an object counts as failed


class Migrated(StrEnum):
    """The result for one object."""

    DONE = "migrated"
    UNCHANGED = "unchanged"
    GONE = "deleted"
    NEWER = "newer"
    FAILED = "failed"


class MigrationStep(msgspec.Struct, frozen=True):
    """The result for one object, and the reason if it failed or is of a newer version."""

    key: str
    result: Migrated
    before: int
    reason: str = ""


async def objects_of(store: Store) -> list[Stored]:
    """Return all objects of the store, in the order of their keys.

    Raises `WatchBrokenError` if the listing breaks several times in a row.
    """
    objects = await listed(store.watch)
    return [objects[key] for key in sorted(objects)]


def outdated(store: Store, objects: Sequence[Stored]) -> list[Stored]:
    """Return the objects that are stored as another version than the newest."""
    newest = store.kind.version
    return [stored for stored in objects if stored_version(stored.value) != newest]


async def migrate(store: Store, objects: Sequence[Stored]) -> AsyncGenerator[MigrationStep, None]:
    """Rewrite the objects, several at a time, and yield the result for each.

    An object that changed since it was read is read again, so that no change is lost. An object
    that is invalid, or of a newer version, stays as it is.
    """
    for first in range(0, len(objects), WRITERS):
        async with together() as group:
            batch = objects[first : first + WRITERS]
            tasks = [group.create_task(_migrate(store, stored)) for stored in batch]
        for task in tasks:
            yield task.result()


def planned(store: Store, objects: Sequence[Stored]) -> Iterator[MigrationStep]:
    """Yield the result that `migrate` would have for each object; nothing is written."""
    for stored in objects:
        before = stored_version(stored.value)
        try:
            value = _newest_form(store, stored)
        except InvalidObjectError as error:
            yield MigrationStep(stored.key, _result_of(error), before, str(error))
        else:
            result = Migrated.UNCHANGED if value == stored.value else Migrated.DONE
            yield MigrationStep(stored.key, result, before)


async def _migrate(store: Store, stored: Stored) -> MigrationStep:
    key, before, newest = stored.key, stored_version(stored.value), stored

    def change(current: Stored | None) -> bytes:
        if current is None:
            raise NotFoundError(f"{key} was deleted")
        return _newest_form(store, current)

    try:
        for left in reversed(range(ROUNDS)):
            try:
                written = (await rewrite(store, key, change, seen=newest)).base is not None
                break
            except ConflictError:
                if not left:
                    raise
                newest = await store.get(key)
    except NotFoundError:
        return MigrationStep(key, Migrated.GONE, before)
    except (InvalidObjectError, StoreError) as error:
        return MigrationStep(key, _result_of(error), before, str(error))
    return MigrationStep(key, Migrated.DONE if written else Migrated.UNCHANGED, before)


def _newest_form(store: Store, stored: Stored) -> bytes:
    """Return the value in the newest form; raises `InvalidObjectError` if it cannot be read."""
    kind = store.kind
    kind.decode(stored.value)
    if stored_version(stored.value) >= kind.version:
        return stored.value
    return documents.render(kind.document(stored.value))


def _result_of(error: Exception) -> Migrated:
    return Migrated.NEWER if isinstance(error, NewerVersionError) else Migrated.FAILED
