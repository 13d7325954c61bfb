"""Stores that answer from a recording; writes that the recording does not have go to memory."""

from collections.abc import Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Self, TypeVar, cast

import msgspec

from natsctl.core.recording.document import StoreStep
from natsctl.core.recording.noted_stores import place_of
from natsctl.core.store_proxy import ManifestStoreProxy, Send, StoreProxy
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind
from natsctl.model.managed_fields import ManagedFields
from natsctl.model.recorder import Recorder
from natsctl.model.store import Deleted, Stored
from natsctl.model.write_guard import WriteGuard
from natsctl.testing.cluster import MemoryCluster
from natsctl.testing.kinds import MemoryResource
from natsctl.testing.manifest_store import MemoryManifestStore
from natsctl.testing.memory import Backup, MemoryStore, MemoryStores
from natsctl.testing.replaying.errors import elapsed
from natsctl.testing.replaying.world import World

T = TypeVar("T")
B = TypeVar("B", bound=MemoryStore | MemoryManifestStore)
Base = TypeVar("Base", bound=MemoryStores | MemoryCluster)


class ReplayStore(StoreProxy[B]):
    """A store that answers each call as recorded; a `Store`.

    A call that was not recorded is answered from memory, where the recorded objects are. A read of
    an object that the recording does not have raises `NotRecordedError`.
    """

    def __init__(self, base: B, world: World) -> None:
        super().__init__(base)
        self._world = world
        self._place = place_of(base.kind)

    def update(self, key: str, value: bytes, *, revision: int) -> Coroutine[Any, Any, Stored]:
        """See `Store.update`."""
        return super().update(key, value, revision=self._present(key, revision))

    def delete(
        self, key: str, *, revision: int | None = None, uid: str = "", purge: bool = False
    ) -> Coroutine[Any, Any, int]:
        """See `Store.delete`."""
        present = None if revision is None else self._present(key, revision)
        return super().delete(key, revision=present, uid=uid, purge=purge)

    async def last_revision(self) -> int:
        """See `Sequenced.last_revision`; the recording has no other objects."""
        return await self.newest_revision()

    async def newest_revision(self) -> int:
        """See `Sequenced.newest_revision`."""
        return max((stored.revision for stored in self._store.stored()), default=0)

    async def _call(
        self,
        verb: str,
        key: str,
        send: Send[T],
        value: bytes | Document = b"",  # noqa: ARG002 - only the answer is recorded
        *,
        revision: int | None = None,  # noqa: ARG002 - likewise
    ) -> T:
        world = self._world
        steps = world.calls.get((self._place, verb, key)) if world.began else None
        step = steps.popleft() if steps else None
        if step is not None:
            await elapsed(step.took_s, step.error)
            if not step.writes:
                present = next(
                    (stored for stored in self._store.stored() if stored.key == key), None
                )
                if present is not None:
                    self._note(step, present.revision)
                return cast("T", self._answer(verb, step))
        elif verb in {"get", "managed"} and not self._knows(key):
            world.miss(f"{self._place} {key}")
        result = await send()
        if step is not None and isinstance(result, Stored):
            self._note(step, result.revision)
        return result

    def _note(self, step: StoreStep, revision: int) -> None:
        """Note which revision in memory stands for the recorded one."""
        recorded = self._world.state(step.state)
        if recorded is not None:
            self._world.revisions[self._place, step.key, recorded.revision] = revision

    def _present(self, key: str, revision: int) -> int:
        """Return the revision in memory that stands for one that the handler knows."""
        return self._world.revisions.get((self._place, key, revision), revision)

    def _knows(self, key: str) -> bool:
        name = self._place, key
        return not self._world.began or name in self._world.known or name in self._world.replayed

    def _answer(self, verb: str, step: StoreStep) -> object:
        answer = msgspec.json.decode(step.answer) if bytes(step.answer) else None
        if verb == "history":
            return [self._entry(entry) for entry in cast("list[dict[str, Any]]", answer)]
        if verb == "managed":
            return msgspec.convert(answer, ManagedFields)
        return self._world.state(step.state)

    def _entry(self, entry: dict[str, Any]) -> Stored | Deleted | None:
        if "deleted" in entry:
            return Deleted(entry["deleted"], entry["revision"], entry["purged"])
        return self._world.state(entry["state"])


class ReplayManifestStore(
    ReplayStore[MemoryManifestStore], ManifestStoreProxy[MemoryManifestStore]
):
    """A store with server-side apply that answers as recorded; a `ManifestStore`."""

    def patch_status(
        self, key: str, patch: Document, *, revision: int | None = None
    ) -> Coroutine[Any, Any, Stored]:
        """See `ManifestStore.patch_status`."""
        present = None if revision is None else self._present(key, revision)
        return super().patch_status(key, patch, revision=present)


class _Replayed(Generic[Base]):
    """A system whose stores answer from a recording.

    Args:
        world: the recording.
        base: the system in memory, which gets the recorded objects.
    """

    forgets = True  # no record of failing keys

    def __init__(self, world: World, base: Base) -> None:
        self._world = world
        self._base = base
        self._filled: set[str] = set()

    def guarded(self, guard: WriteGuard) -> Self:  # noqa: ARG002 - nothing is stored
        """See `Stores.guarded`."""
        return self

    def recorder(self, controller: str) -> AbstractAsyncContextManager[Recorder]:
        """See `Stores.recorder`."""
        return self._base.recorder(controller)

    def _unfilled(self, kind: Kind[Any]) -> list[Stored]:
        """Return the recorded objects of a place that is opened for the first time."""
        place = place_of(kind)
        if place in self._filled:
            return []
        self._filled.add(place)
        return self._world.stored_in(place)


class ReplayStores(_Replayed[MemoryStores]):
    """The buckets of a recording; a `Stores`."""

    async def open(self, kind: Kind[Any]) -> ReplayStore[MemoryStore]:
        """See `Stores.open`."""
        store, states = self._base.store(kind), self._unfilled(kind)
        if states:
            newest = max(stored.revision for stored in states)
            store.restore(Backup({stored.key: [stored] for stored in states}, newest))
        return ReplayStore(store, self._world)

    async def api(
        self,
        endpoint: str,
        body: Mapping[str, object] | None = None,  # noqa: ARG002 - no request is sent
    ) -> dict[str, Any]:
        """See `JetStream.api`; the recording has no answers of the JetStream API."""
        self._world.miss(f"the answer of JetStream to {endpoint}")


class ReplayCluster(_Replayed[MemoryCluster]):
    """The kinds of a cluster in a recording; a `ManifestStores`."""

    async def open(self, kind: Kind[Any]) -> ReplayManifestStore:
        """See `ManifestStores.open`."""
        store = await self._base.open(kind)
        store.restore(self._unfilled(kind))
        return ReplayManifestStore(store, self._world)

    async def resource(self, api_version: str, kind: str) -> MemoryResource:
        """See `Discovers.resource`; recorded keys without a namespace prove that it has none."""
        regular, place = await self._base.resource(api_version, kind), f"kube/{api_version}/{kind}"
        keys = [key for known, key in self._world.known if known == place]
        namespaced = any("/" in key for key in keys) if keys else regular.namespaced
        return MemoryResource(regular.plural, namespaced)
