"""Stores a person's findings about an external resource."""

from collections.abc import Mapping
from datetime import UTC, datetime

from natsctl.core.compare_and_set import read, rewrite
from natsctl.errors import NotFoundError, UsageError
from natsctl.managed.creation.creation import Creation, Mark, ended
from natsctl.managed.creation.links import annotations_of
from natsctl.managed.critical import annotated
from natsctl.managed.names import CREATE_PENDING, AnnotationNames
from natsctl.model.objects import LINK
from natsctl.model.store import Store, Stored


def unresolved(annotations: Mapping[str, str]) -> tuple[AnnotationNames, Mark] | None:
    """Return the intent of a creation with an unknown result, and the names of its annotations.

    The annotations may have any domain. Returns None if there is no such creation.
    """
    for key in annotations:
        domain, _, name = key.rpartition("/")
        if name == CREATE_PENDING:
            names = AnnotationNames(domain)
            creation = Creation.of(annotations, names)
            if creation.unknown and creation.pending is not None:
                return names, creation.pending
    return None


async def resolve(store: Store, key: str, *, created: bool, external_name: str = "") -> Stored:
    """Store the result of the object's creation, and the name of the resource, if given.

    The reconciler then continues by itself. Raises `NotFoundError` if the object does not exist,
    `UsageError` if it has no creation with an unknown result, and `ConflictError` after ten
    conflicts in a row.
    """

    def change(current: Stored | None) -> bytes:
        if current is None:
            raise NotFoundError(f"{store.kind.name} has no {key}")
        annotations = store.kind.metadata(current.value).annotations
        intent = unresolved(annotations)
        if intent is None:
            raise UsageError(f"{key} of {store.kind.name} has no creation with an unknown result")
        names, _ = intent
        resolved = ended(annotations, names, now=datetime.now(UTC), created=created)
        if external_name:
            resolved[names.external_name] = external_name
        changes = {
            name: value for name, value in resolved.items() if annotations.get(name) != value
        }
        return annotated(current.value, dict(changes))

    return (await rewrite(store, key, change, seen=await read(store, key))).stored


async def permit_adoption(store: Store, key: str) -> None:
    """Let the reconciler take over an external resource that natsctl didn't create.

    Raises `NotFoundError` if the object does not exist, and `ConflictError` after ten conflicts in
    a row.
    """

    def change(current: Stored | None) -> bytes:
        if current is None:
            raise NotFoundError(f"{store.kind.name} has no {key}")
        return annotated(current.value, {AnnotationNames().adopt: "true"})

    await rewrite(store, key, change, seen=await read(store, key))


async def unlink(store: Store, key: str) -> None:
    """Remove the link to the external resource from the object, if the object exists.

    The object then records that nothing was created, so the next reconciliation creates.
    """

    def change(current: Stored | None) -> bytes:
        if current is None:
            raise NotFoundError(f"{store.kind.name} has no {key}")
        changes: dict[str, str | None] = {}
        for domain in domains_of(annotations_of(current.value)):
            names = AnnotationNames(domain)
            changes |= dict.fromkeys(names.qualified(LINK))
            changes[names.create_failed] = str(Mark(datetime.now(UTC)))
        return annotated(current.value, changes)

    stored = await read(store, key)
    if stored is not None:
        await rewrite(store, key, change, seen=stored)


def domains_of(annotations: Mapping[str, str]) -> list[str]:
    """Return the domains in which annotations hold a link."""
    parts = (name.rpartition("/") for name in annotations)
    return sorted({domain for domain, _, word in parts if domain and word in LINK})
