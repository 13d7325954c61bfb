"""Primaries in a read-only mirror: what you want flows down, and the status flows up.

The status of each primary is an object of the same key in a bucket of its own. It's a secondary of
the primary, so garbage collection removes it after the primary.
"""

from collections.abc import Collection
from functools import cache
from typing import Any, TypeVar

import msgspec

from natsctl.controller.owned import Secondary
from natsctl.core.readers import Primary
from natsctl.errors import NotFoundError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import KeptStatus
from natsctl.model.objects import Object

T = TypeVar("T")


class MirroredPrimary(Primary[T]):
    """The objects of a mirror, each with the status that this controller gave it."""

    statuses: Secondary[KeptStatus]  # set as soon as its slot is open, which needs this one

    def get(self, key: str) -> T | None:
        obj = super().get(key)
        return None if obj is None else self._with_status(obj, self.statuses.get(key))

    async def read(self, key: str) -> T | None:
        obj = await super().read(key)
        return None if obj is None else self._with_status(obj, await self.statuses.read(key))

    async def update_status(self, key: str, status: msgspec.Struct | Document) -> int:
        stored = self._writes.read(self.informer, key)
        if stored is None:
            raise NotFoundError(f"{key} does not exist")
        observed = self._observed(key, self.kind.document(stored.value))
        return await self.statuses.report(key, {**observed, **documents.plain(status)})

    def _decoded(self, keys: Collection[str]) -> dict[str, T]:
        return {
            key: self._with_status(obj, self.statuses.get(key))
            for key, obj in super()._decoded(keys).items()
        }

    def _with_status(self, obj: T, kept: KeptStatus | None) -> T:
        if kept is None or not isinstance(obj, Object):
            return obj
        try:
            status = msgspec.convert(kept.status, _status_type(type(obj)))
        except msgspec.ValidationError:
            return obj  # somebody else has written it; the next `update_status` mends it
        return msgspec.structs.replace(obj, status=status)


@cache  # each read of an object asks for it
def _status_type(object_type: type[Object]) -> Any:
    return {field.name: field.type for field in msgspec.structs.fields(object_type)}["status"]
