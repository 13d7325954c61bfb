"""A store for simulated processes that can crash before or after any call."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

from natsctl.model.documents import Document
from natsctl.model.kinds import Kind
from natsctl.model.store import Deleted, ManifestStore, Store, Stored, WatchEvent


class MortalStore:
    """A store that makes each call of `store` within the context `call(key)`."""

    def __init__(self, store: Store, call: Callable[[str], AbstractContextManager[None]]) -> None:
        self.kind: Kind[Any] = store.kind
        self._store = store
        self._call = call

    async def get(self, key: str) -> Stored:
        with self._call(key):
            return await self._store.get(key)

    async def create(self, key: str, value: bytes) -> Stored:
        with self._call(key):
            return await self._store.create(key, value)

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        with self._call(key):
            return await self._store.update(key, value, revision=revision)

    async def delete(
        self, key: str, *, revision: int | None = None, uid: str = "", purge: bool = False
    ) -> int:
        with self._call(key):
            return await self._store.delete(key, revision=revision, uid=uid, purge=purge)

    async def history(self, key: str) -> list[Stored | Deleted]:
        with self._call(key):
            return await self._store.history(key)

    async def patch_status(
        self, key: str, patch: Document, *, revision: int | None = None
    ) -> Stored:
        manifests: ManifestStore = self._store  # type: ignore[assignment]  # only called for clusters
        with self._call(key):
            return await manifests.patch_status(key, patch, revision=revision)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        async with self._store.watch() as events:
            yield events
