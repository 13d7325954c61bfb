"""A store around another one, of which every call goes through one method."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeAlias, TypeVar

from natsctl.model.documents import Document
from natsctl.model.managed_fields import ManagedFields
from natsctl.model.store import Deleted, Store, Stored, WatchEvent

T = TypeVar("T")

Send: TypeAlias = Callable[[], Coroutine[Any, Any, T]]
"""Calls the store below."""


class StoreProxy(ABC):
    """A store that makes each call of the *store* below in `_call`; a `ManifestStore` above one."""

    def __init__(self, store: Store) -> None:
        self._store: Any = store

    @abstractmethod
    def _call(
        self,
        verb: str,
        key: str,
        send: Send[T],
        value: bytes | Document = b"",
        *,
        revision: int | None = None,
    ) -> Coroutine[Any, Any, T]:
        """Make a call with *send*, and return its answer.

        Args:
            verb: the name of the method.
            key: the key of the object.
            send: calls the store below.
            value: the value, the manifest or the patch that the call writes.
            revision: the revision that the call expects, if it expects one.
        """

    @property
    def kind(self) -> Any:
        return self._store.kind

    def get(self, key: str) -> Coroutine[Any, Any, Stored]:
        return self._call("get", key, partial(self._store.get, key))

    def create(self, key: str, value: bytes) -> Coroutine[Any, Any, Stored]:
        return self._call("create", key, partial(self._store.create, key, value), value)

    def update(self, key: str, value: bytes, *, revision: int) -> Coroutine[Any, Any, Stored]:
        send = partial(self._store.update, key, value, revision=revision)
        return self._call("update", key, send, value, revision=revision)

    def delete(
        self, key: str, *, revision: int | None = None, uid: str = "", purge: bool = False
    ) -> Coroutine[Any, Any, int]:
        send = partial(self._store.delete, key, revision=revision, uid=uid, purge=purge)
        return self._call("delete", key, send, revision=revision)

    def history(self, key: str) -> Coroutine[Any, Any, list[Stored | Deleted]]:
        return self._call("history", key, partial(self._store.history, key))

    def watch(
        self, shown: Collection[str] | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        watch: AbstractAsyncContextManager[AsyncIterator[WatchEvent]] = self._store.watch(shown)
        return watch

    # ---- the verbs of a `ManifestStore`

    async def locate(self, manifest: Document) -> str:
        key: str = await self._store.locate(manifest)
        return key

    async def apply(
        self, manifest: Document, *, manager: str, uid: str, force: bool = False
    ) -> Stored:
        key = await self._store.locate(manifest)
        send = partial(self._store.apply, manifest, manager=manager, uid=uid, force=force)
        return await self._call("apply", key, send, manifest)

    async def check_create(self, manifest: Document, *, manager: str) -> None:
        key = await self._store.locate(manifest)
        send = partial(self._store.check_create, manifest, manager=manager)
        await self._call("check_create", key, send, manifest)

    def managed(self, key: str) -> Coroutine[Any, Any, ManagedFields]:
        return self._call("managed", key, partial(self._store.managed, key))

    def patch_status(
        self, key: str, patch: Document, *, revision: int | None = None
    ) -> Coroutine[Any, Any, Stored]:
        send = partial(self._store.patch_status, key, patch, revision=revision)
        return self._call("patch_status", key, send, patch, revision=revision)
