"""The finalizer protocol: add the finalizer before apply, clean up before its removal."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from natsctl import Primary, finalized
from natsctl.core.compare_and_set import read
from natsctl.core.informer import Informer
from natsctl.core.sync import Sync
from natsctl.core.writes import Barrier
from natsctl.errors import StoreError
from natsctl.testing import MemoryStore
from tests.support.stores.sample_objects import THINGS, Thing, caught_up, document, informed, value

NAME = "example.org/cleanup"


class Stage:
    """A primary whose sync handler is `finalized`, and the record of its calls."""

    def __init__(self) -> None:
        self.store = MemoryStore(THINGS)
        self.informer = Informer(self.store, THINGS)
        self.barrier = Barrier()
        self.primary = Primary(self.informer, self.barrier)
        self.calls: list[tuple[str, str, str, list[str]]] = []
        self.failure: Exception | None = None

    async def sync(self, key: str = "a") -> float | None:
        """Run the handler once, after the cache has caught up with the store."""
        await caught_up(self.informer, self.store)
        await asyncio.sleep(0.01)
        return await self.sync_now(key)

    async def sync_now(self, key: str = "a") -> float | None:
        """Run the handler once, without waiting for the cache."""
        with Sync(key):
            await self.barrier.wait(key)
            return await finalized(
                self.primary, key, NAME, apply=self._apply, cleanup=self._cleanup
            )

    async def _apply(self, key: str, obj: Thing) -> float | None:
        await self._record("apply", key, obj)
        return 60.0

    async def _cleanup(self, key: str, obj: Thing) -> float | None:
        await self._record("cleanup", key, obj)
        return None

    async def _record(self, step: str, key: str, obj: Thing) -> None:
        """Record the call with the finalizers that are stored when it begins."""
        exists = await read(self.store, key) is not None
        held = await self.finalizers(key) if exists else []
        self.calls.append((step, key, obj.spec.text, held))
        if self.failure is not None:
            raise self.failure

    async def finalizers(self, key: str = "a") -> list[str]:
        return list((await self.document(key)).get("metadata", {}).get("finalizers", []))

    async def document(self, key: str = "a") -> dict[str, Any]:
        return document(await self.store.get(key))


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    async with informed(stage.informer):
        yield stage


class TestApply:
    async def test_the_finalizer_is_stored_before_apply_runs(self, stage: Stage) -> None:
        await stage.store.create("a", value("hi"))
        assert await stage.sync() == 60
        assert stage.calls == [("apply", "a", "hi", [NAME])]

    async def test_a_stored_finalizer_is_not_written_again(self, stage: Stage) -> None:
        await stage.store.create("a", value("hi"))
        await stage.sync()
        writes = stage.store.writes
        await stage.sync()
        assert [step for step, *_ in stage.calls] == ["apply", "apply"]
        assert stage.store.writes == writes

    async def test_the_finalizers_of_others_stay(self, stage: Stage) -> None:
        await stage.store.create("a", value("hi", finalizers=["theirs"]))
        await stage.sync()
        assert await stage.finalizers() == ["theirs", NAME]

    async def test_apply_does_not_run_if_the_finalizer_cannot_be_stored(self, stage: Stage) -> None:
        await stage.store.create("a", value("hi"))
        await caught_up(stage.informer, stage.store)
        stage.store.fail(StoreError("no"))
        with pytest.raises(StoreError, match="no"):
            await stage.sync_now()
        assert stage.calls == []


class TestDeletion:
    @pytest.fixture
    async def stage(self) -> AsyncIterator[Stage]:
        stage = Stage()
        async with informed(stage.informer):
            await stage.store.create("a", value("hi"))
            await stage.sync()
            stage.calls.clear()
            yield stage

    async def test_a_deleted_object_is_removed_after_its_cleanup(self, stage: Stage) -> None:
        await stage.primary.delete("a")
        assert await stage.sync() is None
        assert stage.calls == [("cleanup", "a", "hi", [NAME])]
        assert stage.store.keys() == []

    async def test_an_object_stays_while_its_cleanup_fails(self, stage: Stage) -> None:
        await stage.primary.delete("a")
        stage.failure = OSError("not yet")
        with pytest.raises(OSError, match="not yet"):
            await stage.sync()
        assert await stage.finalizers() == [NAME]
        stage.failure = None
        await stage.sync()
        assert stage.store.keys() == []

    async def test_an_object_stays_while_others_hold_finalizers(self, stage: Stage) -> None:
        await stage.primary.add_finalizer("a", "theirs")
        await stage.primary.delete("a")
        await stage.sync()
        assert await stage.finalizers() == ["theirs"]
        assert [step for step, *_ in stage.calls] == ["cleanup"]
        await stage.sync()
        assert [step for step, *_ in stage.calls] == ["cleanup"]

    async def test_cleanup_runs_once_although_the_cache_lags(self, stage: Stage) -> None:
        await stage.primary.delete("a")
        await stage.sync()
        await stage.sync_now()
        await stage.sync()
        assert [step for step, *_ in stage.calls] == ["cleanup"]

    async def test_an_object_whose_last_finalizer_was_removed_by_hand_is_removed(
        self, stage: Stage
    ) -> None:
        await stage.primary.delete("a")
        stored = await stage.store.get("a")
        taken = stored.value.replace(f'"{NAME}"'.encode(), b"")
        await stage.store.update("a", taken, revision=stored.revision)
        await stage.sync()
        assert stage.calls == []
        assert stage.store.keys() == []

    async def test_an_object_marked_deleted_before_it_had_the_finalizer_is_not_cleaned_up(
        self, stage: Stage
    ) -> None:
        await stage.store.create(
            "b", value("b", finalizers=["theirs"], deletionTimestamp="2026-01-01T00:00:00Z")
        )
        await stage.sync("b")
        assert stage.calls == []
        assert await stage.finalizers("b") == ["theirs"]


class TestDeletionWithoutFinalizers:
    """An object is deleted in spite of its finalizers, for example by `nats kv del`."""

    @pytest.fixture
    async def stage(self) -> AsyncIterator[Stage]:
        stage = Stage()
        async with informed(stage.informer):
            await stage.store.create("a", value("hi"))
            await stage.sync()
            stage.calls.clear()
            yield stage

    async def test_cleanup_gets_the_last_state_from_the_history(self, stage: Stage) -> None:
        await stage.store.delete("a")
        await stage.sync()
        assert stage.calls == [("cleanup", "a", "hi", [])]

    async def test_cleanup_gets_the_last_cached_state_after_a_purge(self, stage: Stage) -> None:
        deleted = await stage.store.get("a")
        await stage.store.delete("a", purge=True)
        stage.primary.queue.note("a").last = deleted
        await stage.sync()
        assert stage.calls == [("cleanup", "a", "hi", [])]

    async def test_cleanup_runs_once(self, stage: Stage) -> None:
        await stage.store.delete("a")
        for _ in range(3):
            await stage.sync()
        assert len(stage.calls) == 1

    async def test_cleanup_is_retried_until_it_succeeds(self, stage: Stage) -> None:
        await stage.store.delete("a")
        stage.failure = OSError("not yet")
        with pytest.raises(OSError, match="not yet"):
            await stage.sync()
        stage.failure = None
        await stage.sync()
        assert len(stage.calls) == 2

    async def test_an_object_lost_without_a_delete_marker_is_not_cleaned_up(
        self, stage: Stage
    ) -> None:
        stage.primary.queue.note("a").last = await stage.store.get("a")
        stage.store.vanish("a")
        stage.store.break_watches()
        await asyncio.sleep(1)
        await stage.sync()
        assert stage.calls == []

    async def test_an_object_without_the_finalizer_is_not_cleaned_up(self, stage: Stage) -> None:
        await stage.store.create("b", value("b", finalizers=["theirs"]))
        await stage.store.delete("b")
        await stage.sync("b")
        assert stage.calls == []

    async def test_a_key_that_never_existed_is_not_cleaned_up(self, stage: Stage) -> None:
        assert await stage.sync("never") is None
        assert stage.calls == []
