"""Finds the deleted owners of objects that were overwritten without their labels.

While a daemon runs, an overwrite enqueues the owner of the object, whose sync restores the labels.
If the owner was deleted while no daemon ran, only the history of the bucket names it. So the
history is read once, at the start.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from natsctl.controller.slots.owned import OWNER_INDEX, Owned
from natsctl.core.cache.state import read_state
from natsctl.core.task_group import for_each
from natsctl.model.kinds import KvKind
from natsctl.model.store import Stored
from natsctl.slices import Slices
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

READ_MAX = 10_000  # objects of one kind whose history is read
READERS = 16


class Claims:
    """The objects of one kind without labels, by the owner that their history names."""

    def __init__(self, secondary: Owned[Any]) -> None:
        self.secondary = secondary
        self._keys: dict[str, list[str]] = {}

    async def read_histories(self) -> None:
        """Read the history of every object that names no owner."""
        kind = self.secondary.kind
        if not isinstance(kind, KvKind) or kind.history == 1:
            return
        unclaimed = await self._unclaimed()
        if len(unclaimed) > READ_MAX:
            log.warning(
                "too many objects without an owner to read the history of all",
                kind=kind.name,
                read=READ_MAX,
            )
        await for_each(unclaimed[:READ_MAX], self._read, workers=READERS)

    async def _unclaimed(self) -> list[str]:
        """Return `READ_MAX` objects without an owner, and one more if there are more."""
        unclaimed: list[str] = []
        slices = Slices()
        for key in self.secondary.informer.cache.unindexed(OWNER_INDEX):
            if key is not None:
                unclaimed.append(key)
                if len(unclaimed) > READ_MAX:
                    break
            if slices.is_over():
                await slices.pause()
        return unclaimed

    async def _read(self, key: str) -> None:
        await asyncio.sleep(0)
        stored = read_state(self.secondary.informer.cache.newest(key))
        if stored is not None:
            owner = await self.secondary.lost_owner(stored)
            if owner is not None:
                self._keys.setdefault(owner.key, []).append(key)

    @property
    def owners(self) -> Sequence[str]:
        """The keys of the owners."""
        return list(self._keys)

    def claimed(self, owner: str) -> list[Stored]:
        """Return the objects of the primary *owner* that still carry no labels."""
        cache = self.secondary.informer.cache
        newest = (read_state(cache.newest(key)) for key in self._keys.get(owner, ()))
        return [
            stored
            for stored in newest
            if stored is not None and self.secondary.owner_of(stored) is None
        ]
