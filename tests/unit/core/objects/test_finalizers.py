"""Deletion of objects with finalizers: mark first, remove with the last finalizer."""

import pytest

import natsctl
from natsctl.core.compare_and_set import Written, delete, release, with_finalizer
from natsctl.errors import ConflictError, InvalidObjectError, NotFoundError
from natsctl.model.store import Deleted, Stored
from natsctl.testing import MemoryStore
from tests.support.stores.sample_objects import THINGS, document, value


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(THINGS)


class ContendedStore(MemoryStore):
    """A store in which another client writes before each of the next *times* writes."""

    def __init__(self, times: int) -> None:
        super().__init__(THINGS)
        self.times = times

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        await self._write_as_another(key)
        return await super().update(key, value, revision=revision)

    async def delete(self, key: str, *, revision: int | None = None, purge: bool = False) -> int:  # type: ignore[override]
        await self._write_as_another(key)
        return await super().delete(key, revision=revision, purge=purge)

    async def _write_as_another(self, key: str) -> None:
        if self.times:
            self.times -= 1
            newest = await self.get(key)
            changed = newest.value.replace(b'"finalizers"', b'"x": 1, "finalizers"')
            await super().update(key, changed, revision=newest.revision)


class TestDelete:
    async def test_an_object_without_finalizers_is_deleted_at_once(
        self, store: MemoryStore
    ) -> None:
        await store.create("a", value())
        assert (await delete(store, "a")).stored is None
        assert store.keys() == []

    async def test_an_object_with_finalizers_is_marked_and_stays(self, store: MemoryStore) -> None:
        await store.create("a", value("hi", finalizers=["x"], generation=1, unknown=1))
        assert (await delete(store, "a")).stored == await store.get("a")
        marked = document(await store.get("a"))
        assert marked["metadata"]["deletionTimestamp"]
        assert marked["metadata"]["generation"] == 2
        assert marked["metadata"]["unknown"] == 1
        assert marked["spec"]["text"] == "hi"

    async def test_a_second_deletion_changes_nothing(self, store: MemoryStore) -> None:
        await store.create("a", value(finalizers=["x"]))
        await delete(store, "a")
        marked = await store.get("a")
        assert (await delete(store, "a")).stored == await store.get("a")
        assert await store.get("a") == marked

    async def test_delete_of_a_missing_object_raises_not_found(self, store: MemoryStore) -> None:
        with pytest.raises(NotFoundError):
            await delete(store, "a")

    async def test_an_object_of_a_plain_kind_is_deleted_at_once(self) -> None:
        store = MemoryStore(natsctl.kv(dict, bucket="plain"))
        await store.create("a", b'{"metadata": {"finalizers": ["x"]}}')
        assert (await delete(store, "a")).stored is None
        assert store.keys() == []

    async def test_an_object_with_unreadable_metadata_is_not_deleted(
        self, store: MemoryStore
    ) -> None:
        await store.create("a", b'{"metadata": {"finalizers": 1}, "spec": {"text": "hi"}}')
        with pytest.raises(InvalidObjectError):
            await delete(store, "a")
        assert store.keys() == ["a"]

    async def test_an_object_that_just_got_a_finalizer_is_marked(self) -> None:
        class FinalizerAdded(MemoryStore):
            async def delete(  # type: ignore[override]
                self, key: str, *, revision: int | None = None, purge: bool = False
            ) -> int:
                newest = await self.get(key)
                if newest.revision == 1:
                    await self.update(key, with_finalizer(newest, "x"), revision=1)
                return await super().delete(key, revision=revision, purge=purge)

        store = FinalizerAdded(THINGS)
        await store.create("a", value())
        assert (await delete(store, "a")).stored == await store.get("a")  # type: ignore[arg-type]
        assert document(await store.get("a"))["metadata"]["deletionTimestamp"]

    @pytest.mark.parametrize("finalizers", [[], ["x"]])
    async def test_a_contended_delete_is_retried(self, finalizers: list[str]) -> None:
        store = ContendedStore(9)
        await store.create("a", value(finalizers=finalizers))
        assert ((await delete(store, "a")).stored is None) == (not finalizers)  # type: ignore[arg-type]

    async def test_delete_fails_after_the_last_attempt(self) -> None:
        store = ContendedStore(10)
        await store.create("a", value(finalizers=["x"]))
        with pytest.raises(ConflictError, match=r"a of Thing\.things"):
            await delete(store, "a")  # type: ignore[arg-type]


class TestAddingFinalizers:
    def finalizers(self, stored: Stored, name: str) -> object:
        held_value = Stored(stored.key, 2, with_finalizer(stored, name))
        return document(held_value)["metadata"]["finalizers"]

    async def test_a_finalizer_is_added_to_those_of_others(self, store: MemoryStore) -> None:
        stored = await store.create("a", value(finalizers=["x"]))
        assert self.finalizers(stored, "y") == ["x", "y"]

    async def test_an_existing_finalizer_causes_no_change(self, store: MemoryStore) -> None:
        stored = await store.create("a", value(finalizers=["x"]))
        assert with_finalizer(stored, "x") == stored.value


class TestRemovingFinalizers:
    async def test_finalizers_of_others_stay(self, store: MemoryStore) -> None:
        await store.create("a", value(finalizers=["x", "y"]))
        await delete(store, "a")
        written = await release(store, "a", "x")
        assert written == Written(3, await store.get("a"))
        assert document(await store.get("a"))["metadata"]["finalizers"] == ["y"]

    async def test_a_marked_object_is_deleted_with_its_last_finalizer(
        self, store: MemoryStore
    ) -> None:
        await store.create("a", value(finalizers=["x"]))
        await delete(store, "a")
        assert await release(store, "a", "x") == Written(4, None)
        assert store.keys() == []

    async def test_the_history_has_a_last_state_without_finalizers(
        self, store: MemoryStore
    ) -> None:
        await store.create("a", value(finalizers=["x"]))
        await delete(store, "a")
        await release(store, "a", "x")
        *_, last, marker = await store.history("a")
        assert isinstance(last, Stored)
        assert document(last)["metadata"]["finalizers"] == []
        assert isinstance(marker, Deleted)

    async def test_an_object_that_is_not_marked_stays(self, store: MemoryStore) -> None:
        await store.create("a", value(finalizers=["x"]))
        await release(store, "a", "x")
        assert document(await store.get("a"))["metadata"]["finalizers"] == []

    async def test_a_marked_object_without_finalizers_is_deleted(self, store: MemoryStore) -> None:
        await store.create("a", value(finalizers=[], deletionTimestamp="2026-01-01T00:00:00Z"))
        await release(store, "a", "x")
        assert store.keys() == []

    async def test_removing_an_absent_finalizer_changes_nothing(self, store: MemoryStore) -> None:
        stored = await store.create("a", value(finalizers=["y"]))
        await release(store, "a", "x")
        assert await store.get("a") == stored

    async def test_a_missing_object_is_ignored(self, store: MemoryStore) -> None:
        assert await release(store, "a", "x") is None
        assert store.keys() == []

    @pytest.mark.parametrize("others", [[], ["y"]])
    async def test_a_contended_release_is_retried(self, others: list[str]) -> None:
        store = ContendedStore(0)
        await store.create("a", value(finalizers=["x", *others]))
        await delete(store, "a")  # type: ignore[arg-type]
        store.times = 9
        await release(store, "a", "x")  # type: ignore[arg-type]
        assert store.keys() == (["a"] if others else [])

    async def test_release_fails_after_the_last_attempt(self) -> None:
        store = ContendedStore(10)
        await store.create("a", value(finalizers=["x", "y"]))
        with pytest.raises(ConflictError, match=r"a of Thing\.things"):
            await release(store, "a", "x")  # type: ignore[arg-type]

    async def test_an_object_that_gets_a_finalizer_just_before_its_deletion_stays(self) -> None:
        class FinalizerAdded(MemoryStore):
            adds = True

            async def delete(  # type: ignore[override]
                self, key: str, *, revision: int | None = None, purge: bool = False
            ) -> int:
                if self.adds:
                    self.adds = False
                    newest = await self.get(key)
                    await self.update(key, with_finalizer(newest, "y"), revision=newest.revision)
                return await super().delete(key, revision=revision, purge=purge)

        store = FinalizerAdded(THINGS)
        await store.create("a", value(finalizers=["x"], deletionTimestamp="2026-01-01T00:00:00Z"))
        await release(store, "a", "x")  # type: ignore[arg-type]
        assert document(await store.get("a"))["metadata"]["finalizers"] == ["y"]

    async def test_an_object_that_the_store_deletes_with_its_last_finalizer_is_deleted(
        self,
    ) -> None:
        class Cluster(MemoryStore):
            async def delete(  # type: ignore[override]
                self, key: str, *, revision: int | None = None, purge: bool = False
            ) -> int:
                raise NotFoundError(f"there is no {key}")

        store = Cluster(THINGS)
        await store.create("a", value(finalizers=["x"], deletionTimestamp="2026-01-01T00:00:00Z"))
        assert await release(store, "a", "x") == Written(2, None)  # type: ignore[arg-type]
