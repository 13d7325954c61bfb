"""Saying what came of a creation of which nobody knows: what a person found out."""

from collections.abc import Mapping
from datetime import UTC, datetime

from natsctl.core.write import read, rewrite
from natsctl.errors import NotFoundError, UsageError
from natsctl.managed.creation import Creation, Mark, ended
from natsctl.managed.critical import annotated
from natsctl.managed.names import CREATE_PENDING, AnnotationNames
from natsctl.model.store import Store, Stored


def unresolved(annotations: Mapping[str, str]) -> tuple[AnnotationNames, Mark] | None:
    """Return the intent of a creation whose result is unknown, and what its annotations are called.

    None where there is none, in any domain of annotations.
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
    """Store the result of the object's creation, and the name of what was created, if given.

    Whoever manages the object goes on by itself then. Raises `NotFoundError` where there is no
    such object, `UsageError` where it has no creation with an unknown result, and
    `ConflictError` when others were faster ten times in a row.
    """

    def change(current: Stored | None) -> bytes:
        if current is None:
            raise NotFoundError(f"{store.kind.name} has no {key}")
        annotations = store.kind.metadata(current.value).annotations
        found = unresolved(annotations)
        if found is None:
            raise UsageError(f"{key} of {store.kind.name} has no creation with an unknown result")
        names, _ = found
        said = ended(annotations, names, now=datetime.now(UTC), created=created)
        if external_name:
            said[names.external_name] = external_name
        changes = {name: value for name, value in said.items() if annotations.get(name) != value}
        return annotated(current.value, dict(changes))

    return (await rewrite(store, key, change, seen=await read(store, key))).stored
