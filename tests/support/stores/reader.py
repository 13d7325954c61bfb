"""A reader of a store that watches it again and again, as an informer does."""

import asyncio
from contextlib import suppress

from natsctl.errors import StoreError
from natsctl.model.store import Applied, Batch, Deleted, Listed, Listing, Store, WatchEvent

PATIENCE_S = 60.0


class Reader:
    """Keeps what the watches of its store show, as an informer does."""

    def __init__(self, store: Store) -> None:
        self.objects: dict[str, bytes] = {}
        self.incarnations: list[str] = []  # of the lists
        self.events = 0  # states and deletions of the last watch
        self.shown = self.objects.keys()
        self.store = store

    async def catch_up(self) -> None:
        """Watch until the reader has taken `Listed`; a watch that breaks starts again."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                self.events = 0
                try:
                    await self._follow()
                except StoreError:
                    await asyncio.sleep(0.05)
                else:
                    return

    async def _follow(self) -> None:
        async with self.store.watch(self.shown) as events:
            async for event in events:
                self._take(event)
                if isinstance(event, Listed):
                    with suppress(TimeoutError):  # take it, and nothing more
                        await asyncio.wait_for(anext(events), 0.01)
                    return

    def _take(self, event: WatchEvent) -> None:
        match event:
            case Listing(incarnation):
                self.incarnations.append(incarnation)
                self.objects.clear()
            case Applied(stored):
                self.events += 1
                self.objects[stored.key] = stored.value
            case Batch(states):
                self.events += len(states)
                self.objects.update((stored.key, stored.value) for stored in states)
            case Deleted(key):
                self.events += 1
                self.objects.pop(key, None)
