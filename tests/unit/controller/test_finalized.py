"""The finalizer protocol: hold before apply, clean up before goodbye."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from natsctl.controller.finalized import finalized
from natsctl.core.cache.informer import Informer
from natsctl.core.objects.compare_and_set import read
from natsctl.core.objects.primary import Primary
from natsctl.core.objects.read_your_writes import Barrier, Sync
from natsctl.errors import StoreError
from natsctl.testing.memory import MemoryStore
from tests.support.stores.sample_objects import THINGS, Thing, caught_up, document, informed, value

NAME = "example.org/cleanup"


class Play:
    """A primary whose handler is `finalized`, and what that did."""

    def __init__(self) -> None:
        self.store = MemoryStore(THINGS)
        self.informer = Informer(self.store, THINGS)
        self.barrier = Barrier()
        self.primary = Primary(self.informer, self.barrier)
        self.done: list[tuple[str, str, str, list[str]]] = []
        self.failure: Exception | None = None

    async def sync(self, key: str = "a") -> float | None:
        """Run the handler once, after the cache has seen everything."""
        await caught_up(self.informer, self.store)
        await asyncio.sleep(0.01)
        return await self.sync_now(key)

    async def sync_now(self, key: str = "a") -> float | None:
        """Run the handler once, as a worker does."""
        with Sync(key):
            await self.barrier.wait(key)
            return await finalized(
                self.primary, key, NAME, apply=self._apply, cleanup=self._cleanup
            )

    async def _apply(self, key: str, obj: Thing) -> float | None:
        await self._note("apply", key, obj)
        return 60.0

    async def _cleanup(self, key: str, obj: Thing) -> float | None:
        await self._note("cleanup", key, obj)
        return None

    async def _note(self, what: str, key: str, obj: Thing) -> None:
        """Note the step, with the finalizers that are stored when it begins."""
        exists = await read(self.store, key) is not None
        held = await self.finalizers(key) if exists else []
        self.done.append((what, key, obj.spec.text, held))
        if self.failure is not None:
            raise self.failure

    async def finalizers(self, key: str = "a") -> list[str]:
        return list((await self.document(key)).get("metadata", {}).get("finalizers", []))

    async def document(self, key: str = "a") -> dict[str, Any]:
        return document(await self.store.get(key))


@pytest.fixture
async def play() -> AsyncIterator[Play]:
    play = Play()
    async with informed(play.informer):
        yield play


class TestHolding:
    async def test_the_finalizer_is_stored_before_apply_runs(self, play: Play) -> None:
        await play.store.create("a", value("hi"))
        assert await play.sync() == 60
        assert play.done == [("apply", "a", "hi", [NAME])]

    async def test_what_is_held_already_is_not_written_again(self, play: Play) -> None:
        await play.store.create("a", value("hi"))
        await play.sync()
        writes = play.store.writes
        await play.sync()
        assert [what for what, *_ in play.done] == ["apply", "apply"]
        assert play.store.writes == writes

    async def test_it_is_put_next_to_those_of_others(self, play: Play) -> None:
        await play.store.create("a", value("hi", finalizers=["theirs"]))
        await play.sync()
        assert await play.finalizers() == ["theirs", NAME]

    async def test_apply_does_not_run_where_it_cannot_be_stored(self, play: Play) -> None:
        await play.store.create("a", value("hi"))
        await caught_up(play.informer, play.store)
        play.store.fail(StoreError("no"))
        with pytest.raises(StoreError, match="no"):
            await play.sync_now()
        assert play.done == []


class TestLettingGo:
    @pytest.fixture
    async def play(self) -> AsyncIterator[Play]:
        play = Play()
        async with informed(play.informer):
            await play.store.create("a", value("hi"))
            await play.sync()
            play.done.clear()
            yield play

    async def test_a_deleted_object_is_cleaned_up_and_goes(self, play: Play) -> None:
        await play.primary.delete("a")
        assert await play.sync() is None
        assert play.done == [("cleanup", "a", "hi", [NAME])]
        assert play.store.keys() == []

    async def test_it_stays_while_its_cleanup_fails(self, play: Play) -> None:
        await play.primary.delete("a")
        play.failure = OSError("not yet")
        with pytest.raises(OSError, match="not yet"):
            await play.sync()
        assert await play.finalizers() == [NAME]
        play.failure = None
        await play.sync()
        assert play.store.keys() == []

    async def test_those_of_others_are_left_alone(self, play: Play) -> None:
        await play.primary.add_finalizer("a", "theirs")
        await play.primary.delete("a")
        await play.sync()
        assert await play.finalizers() == ["theirs"]
        assert [what for what, *_ in play.done] == ["cleanup"]
        await play.sync()
        assert [what for what, *_ in play.done] == ["cleanup"]

    async def test_it_is_cleaned_up_once_even_where_the_cache_is_late(self, play: Play) -> None:
        await play.primary.delete("a")
        await play.sync()
        await play.sync_now()
        await play.sync()
        assert [what for what, *_ in play.done] == ["cleanup"]

    async def test_one_from_which_somebody_took_the_last_finalizer_goes(self, play: Play) -> None:
        await play.primary.delete("a")
        stored = await play.store.get("a")
        taken = stored.value.replace(f'"{NAME}"'.encode(), b"")
        await play.store.update("a", taken, revision=stored.revision)
        await play.sync()
        assert play.done == []
        assert play.store.keys() == []

    async def test_one_marked_before_it_was_ever_held_is_not_cleaned_up(self, play: Play) -> None:
        await play.store.create(
            "b", value("b", finalizers=["theirs"], deletionTimestamp="2026-01-01T00:00:00Z")
        )
        await play.sync("b")
        assert play.done == []
        assert await play.finalizers("b") == ["theirs"]


class TestBypassed:
    """Deleted past its finalizers, as `nats kv del` does."""

    @pytest.fixture
    async def play(self) -> AsyncIterator[Play]:
        play = Play()
        async with informed(play.informer):
            await play.store.create("a", value("hi"))
            await play.sync()
            play.done.clear()
            yield play

    async def test_it_is_cleaned_up_with_the_last_state_in_its_history(self, play: Play) -> None:
        await play.store.delete("a")
        await play.sync()
        assert play.done == [("cleanup", "a", "hi", [])]

    async def test_it_is_cleaned_up_with_the_last_state_seen_after_a_purge(
        self, play: Play
    ) -> None:
        seen = await play.store.get("a")
        await play.store.delete("a", purge=True)
        play.primary.gone["a"] = seen
        await play.sync()
        assert play.done == [("cleanup", "a", "hi", [])]

    async def test_it_is_cleaned_up_once(self, play: Play) -> None:
        await play.store.delete("a")
        for _ in range(3):
            await play.sync()
        assert len(play.done) == 1

    async def test_it_is_tried_again_until_it_succeeds(self, play: Play) -> None:
        await play.store.delete("a")
        play.failure = OSError("not yet")
        with pytest.raises(OSError, match="not yet"):
            await play.sync()
        play.failure = None
        await play.sync()
        assert len(play.done) == 2

    async def test_what_was_lost_without_a_trace_is_not_cleaned_up(self, play: Play) -> None:
        play.primary.gone["a"] = await play.store.get("a")
        play.store.vanish("a")
        play.store.break_watches()
        await asyncio.sleep(1)
        await play.sync()
        assert play.done == []

    async def test_what_we_never_held_is_not_cleaned_up(self, play: Play) -> None:
        await play.store.create("b", value("b", finalizers=["theirs"]))
        await play.store.delete("b")
        await play.sync("b")
        assert play.done == []

    async def test_what_never_was_is_not_cleaned_up(self, play: Play) -> None:
        assert await play.sync("never") is None
        assert play.done == []
