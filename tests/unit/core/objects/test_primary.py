"""What a controller reads and writes, and what each write leaves alone."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

import natsctl
from natsctl.controller.slots.own_writes import OwnWrites
from natsctl.controller.slots.owned import OWNER_INDEX
from natsctl.controller.slots.owners import OwnerNames
from natsctl.controller.slots.secondary import Secondary
from natsctl.core.cache.informer import Informer
from natsctl.core.objects.primary import Primary, Tertiary
from natsctl.core.objects.read_your_writes import Barrier, Sync
from natsctl.errors import (
    ConflictError,
    ExistsError,
    InvalidObjectError,
    NotFoundError,
    UsageError,
)
from natsctl.model.store import Change, Stored
from natsctl.testing.memory import MemoryStore
from tests.support.stores.sample_objects import (
    THINGS,
    Thing,
    caught_up,
    document,
    informed,
    thing,
    value,
)

OWNER_KIND = "App.apps"
NAMES = OwnerNames()
LABELS = NAMES.labels


class Bench:
    """One store with an informer, and a barrier."""

    def __init__(self) -> None:
        self.store = MemoryStore(THINGS)
        self.barrier = Barrier()
        self.informer = Informer(
            self.store,
            THINGS,
            indexes={
                OWNER_INDEX: NAMES.index(THINGS, OWNER_KIND),
                "group": lambda thing: thing.spec.groups,
            },
        )

    async def put(self, key: str, text: bytes) -> Stored:
        """Write as somebody else does, and let the cache see it."""
        try:
            revision = (await self.store.get(key)).revision
        except NotFoundError:
            stored = await self.store.create(key, text)
        else:
            stored = await self.store.update(key, text, revision=revision)
        await self.seen()
        return stored

    async def seen(self) -> None:
        """Let the cache see everything."""
        await caught_up(self.informer, self.store)
        await asyncio.sleep(0.01)

    async def document(self, key: str) -> dict[str, Any]:
        return document(await self.store.get(key))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    async with informed(bench.informer):
        yield bench


@pytest.fixture
def primary(bench: Bench) -> Primary[Thing]:
    return Primary(bench.informer, bench.barrier)


@pytest.fixture
def news() -> list[tuple[str, str | None]]:
    """The keys of the changes that were told, with the key whose sync made each."""
    return []


@pytest.fixture
def secondary(bench: Bench, news: list[tuple[str, str | None]]) -> Iterator[Secondary[Thing]]:
    def tell(change: Change[Any], writer: str | None) -> None:
        news.append((change.key, writer))

    own = OwnWrites(tell)
    with bench.informer.subscribe(own.see):
        yield Secondary(bench.informer, bench.barrier, own, NAMES, OWNER_KIND)


class TestReading:
    async def test_an_object_is_read_from_the_cache(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", value("hi"))
        writes = bench.store.writes
        bench.store.fail(ConflictError("do not ask me"))
        assert primary.get("a") == thing("hi")
        assert primary.get("b") is None
        assert primary.items() == {"a": thing("hi")}
        assert bench.store.writes == writes

    async def test_the_store_itself_is_read_when_that_is_asked_for(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.store.create("a", value("hi"))
        assert primary.get("a") is None
        assert await primary.read("a") == thing("hi")
        assert await primary.read("b") is None

    async def test_objects_are_found_by_index(self, bench: Bench, primary: Primary[Thing]) -> None:
        await bench.put("a", value("hi", "x"))
        await bench.put("b", value("ho", "y"))
        assert primary.by_index("group", "x") == {"a": thing("hi", "x")}
        assert primary.by_index("group", "z") == {}

    async def test_the_last_good_state_is_read_and_the_error_is_told(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", value("hi"))
        assert primary.error("a") is None
        await bench.put("a", b'{"spec": {"text": 1}}')
        assert primary.get("a") == thing("hi")
        assert isinstance(primary.error("a"), InvalidObjectError)

    async def test_an_invalid_object_read_from_the_store_is_an_error(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", b"no JSON")
        with pytest.raises(InvalidObjectError):
            await primary.read("a")

    async def test_a_tertiary_reads_and_does_not_write(self, bench: Bench) -> None:
        tertiary = Tertiary(bench.informer, bench.barrier)
        await bench.put("a", value("hi"))
        assert tertiary.get("a") == thing("hi")
        assert not hasattr(tertiary, "put")
        assert not hasattr(tertiary, "apply")


class TestReadingWithinASync:
    """What a sync wrote is read back before any cache shows it."""

    async def test_an_object_that_was_put(self, primary: Primary[Thing]) -> None:
        with Sync("a"):
            await primary.put("a", thing("hi", "x"))
            got = primary.get("a")
            assert got is not None
            assert got.spec == thing("hi", "x").spec
            assert list(primary.keys()) == list(primary.items()) == ["a"]
            assert list(primary.by_index("group", "x")) == ["a"]

    async def test_an_object_that_left_an_index(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", value("hi", "x"))
        with Sync("a"):
            await primary.put("a", thing("hi", "y"))
            assert primary.by_index("group", "x") == {}
            assert list(primary.by_index("group", "y")) == ["a"]

    async def test_an_object_that_was_deleted(self, bench: Bench, primary: Primary[Thing]) -> None:
        await bench.put("a", value("hi", "x"))
        with Sync("a"):
            await primary.delete("a")
            assert primary.get("a") is None
            assert list(primary.keys()) == []
            assert primary.by_index("group", "x") == {}

    async def test_an_object_that_was_marked_deleted(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", value(finalizers=["x"]))
        with Sync("a"):
            await primary.delete("a")
            got = primary.get("a")
            assert got is not None
            assert got.metadata.deletion_timestamp is not None

    async def test_an_object_that_went_with_its_last_finalizer(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", value(finalizers=["x"]))
        await primary.delete("a")
        await bench.seen()
        with Sync("a"):
            await primary.remove_finalizer("a", "x")
            assert primary.get("a") is None
            assert bench.barrier.awaits("a")

    async def test_a_status(self, bench: Bench, primary: Primary[Thing]) -> None:
        await bench.put("a", value())
        with Sync("a"):
            await primary.update_status("a", {"ready": True})
            got = primary.get("a")
            assert got is not None
            assert got.status == {"ready": True}


class TestPutting:
    async def test_a_new_object_is_created_and_stamped(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        revision = await primary.put("a", thing("hi"))
        assert (await bench.store.get("a")).revision == revision
        assert (await bench.document("a"))["metadata"]["generation"] == 1

    async def test_what_the_type_does_not_know_stays(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        odd = {"metadata": {"x": 1}, "spec": {"text": "1", "y": 2}, "status": {"z": 3}, "data": 4}
        await bench.put("a", msgspec.json.encode(odd))
        await primary.put("a", thing("2"))
        found = await bench.document("a")
        assert (found["metadata"]["x"], found["spec"]["y"]) == (1, 2)
        assert (found["status"], found["data"]) == ({"z": 3}, 4)
        assert found["spec"]["text"] == "2"

    async def test_what_would_not_change_is_not_sent(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        revision = await primary.put("a", thing("hi", "x"))
        await bench.seen()
        assert await primary.put("a", thing("hi", "x")) == revision
        assert bench.store.writes == 1

    async def test_what_somebody_wrote_meanwhile_stays(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        stored = await bench.put("a", value("1"))
        await bench.store.update("a", value("1", x=1), revision=stored.revision)
        await primary.put("a", thing("2"))
        assert (await bench.document("a"))["metadata"]["x"] == 1

    @pytest.mark.parametrize("text", [b"", b"no JSON", b'{"spec": {"text": 1}, "data": 1}'])
    async def test_what_is_invalid_is_healed(
        self, bench: Bench, primary: Primary[Thing], text: bytes
    ) -> None:
        await bench.put("a", text)
        await primary.put("a", thing("hi"))
        await bench.seen()
        assert primary.error("a") is None
        assert primary.get("a") is not None

    async def test_create_refuses_what_exists(self, primary: Primary[Thing]) -> None:
        await primary.create("a", thing("1"))
        with pytest.raises(ConflictError):
            await primary.create("a", thing("2"))

    async def test_update_refuses_a_stale_revision(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        first = await primary.create("a", thing("1"))
        second = await primary.update("a", thing("2"), revision=first)
        with pytest.raises(ConflictError, match=f"at revision {second}, not at {first}"):
            await primary.update("a", thing("3"), revision=first)
        assert (await bench.document("a"))["metadata"]["generation"] == 2

    async def test_update_refuses_what_does_not_exist(self, primary: Primary[Thing]) -> None:
        with pytest.raises(NotFoundError):
            await primary.update("a", thing("1"), revision=1)


class TestDeleting:
    async def test_an_object_that_nobody_holds_goes(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", value())
        await primary.delete("a")
        assert bench.store.keys() == []

    async def test_an_object_that_is_held_is_marked(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", value(finalizers=["x"]))
        await primary.delete("a")
        assert (await bench.document("a"))["metadata"]["deletionTimestamp"]

    async def test_what_does_not_exist_is_not_found(self, primary: Primary[Thing]) -> None:
        with pytest.raises(NotFoundError):
            await primary.delete("a")


class TestStatus:
    async def test_it_is_merged_into_what_is_there(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        odd = {"spec": {"text": "hi"}, "status": {"a": 1, "b": {"c": 1, "d": 2}}}
        await bench.put("a", msgspec.json.encode(odd))
        await primary.update_status("a", {"a": None, "b": {"c": 3}})
        assert (await bench.document("a"))["status"] == {"b": {"c": 3, "d": 2}}

    async def test_it_changes_nothing_else(self, bench: Bench, primary: Primary[Thing]) -> None:
        odd = {"metadata": {"x": 1, "generation": 2}, "spec": {"text": "hi", "y": 1}, "data": 1}
        await bench.put("a", msgspec.json.encode(odd))
        await primary.update_status("a", {"ready": True})
        found = await bench.document("a")
        assert found.pop("status") == {"observedGeneration": 2, "ready": True}
        assert found == odd

    async def test_it_may_be_a_struct(self, bench: Bench, primary: Primary[Thing]) -> None:
        class Status(msgspec.Struct, rename="camel"):
            ready_parts: tuple[str, ...]

        await bench.put("a", value())
        await primary.update_status("a", Status(("x", "y")))
        assert (await bench.document("a"))["status"] == {"readyParts": ["x", "y"]}

    async def test_what_would_not_change_is_not_sent(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", value(generation=1))
        status = {"ready": True, "parts": ("x", "y"), "odd": {"n": None}}
        revision = await primary.update_status("a", status)
        await bench.seen()
        assert await primary.update_status("a", status) == revision
        assert bench.store.writes == 2

    async def test_what_somebody_wrote_meanwhile_stays(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        stored = await bench.put("a", value("1"))
        await bench.store.update("a", value("2"), revision=stored.revision)
        await primary.update_status("a", {"ready": True})
        assert (await bench.document("a"))["spec"]["text"] == "2"

    async def test_the_generation_observed_is_that_which_the_sync_has_got(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", value("1", generation=1))
        with Sync("a"):
            primary.get("a")
            await bench.put("a", value("2", generation=2))
            await primary.update_status("a", {"ready": True})
        assert (await bench.document("a"))["status"]["observedGeneration"] == 1
        with Sync("a"):
            primary.get("a")
            await primary.update_status("a", {"ready": True})
        assert (await bench.document("a"))["status"]["observedGeneration"] == 2

    async def test_the_generation_observed_may_be_said(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", value(generation=3))
        await primary.update_status("a", {"observedGeneration": 1})
        assert (await bench.document("a"))["status"]["observedGeneration"] == 1

    async def test_of_what_is_gone_there_is_none(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", value())
        await bench.store.delete("a")
        with pytest.raises(NotFoundError):
            await primary.update_status("a", {"ready": True})
        assert bench.store.keys() == []

    async def test_of_a_plain_kind_there_is_none(self) -> None:
        plain = natsctl.kv(dict, bucket="plain")
        primary = Primary(Informer(MemoryStore(plain), plain), Barrier())
        with pytest.raises(UsageError, match="no labels, finalizers or status"):
            await primary.update_status("a", {"ready": True})


class TestFinalizers:
    async def test_one_is_put_next_to_those_of_others(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", value(finalizers=["x"]))
        await primary.add_finalizer("a", "y")
        await primary.add_finalizer("a", "y")
        assert (await bench.document("a"))["metadata"]["finalizers"] == ["x", "y"]

    async def test_those_of_others_stay_when_ours_goes(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", value(finalizers=["x", "y", "z"]))
        await primary.remove_finalizer("a", "y")
        assert (await bench.document("a"))["metadata"]["finalizers"] == ["x", "z"]

    async def test_what_is_gone_is_not_held(self, primary: Primary[Thing]) -> None:
        with pytest.raises(NotFoundError):
            await primary.add_finalizer("a", "x")


class TestLastStates:
    async def test_the_last_state_of_a_deleted_object_is_in_its_history(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", value("1"))
        await bench.put("a", value("2"))
        await bench.store.delete("a")
        assert await primary.last("a") == thing("2")

    async def test_one_that_is_invalid_is_passed_over(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", value("1"))
        await bench.put("a", b"no JSON")
        await bench.store.delete("a")
        assert await primary.last("a") == thing("1")

    async def test_one_that_was_seen_to_go_needs_no_history(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        primary.gone["a"] = Stored("a", 1, value("seen"))
        assert await primary.last("a") == thing("seen")

    async def test_what_never_was_has_none(self, primary: Primary[Thing]) -> None:
        assert await primary.last("a") is None
        assert await primary.deleted_at("a") is None

    async def test_a_deleted_object_that_is_forgotten_has_none(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        await bench.put("a", value())
        deleted_at = await bench.store.delete("a")
        assert await primary.deleted_at("a") == deleted_at
        await primary.forget("a")
        assert await primary.last("a") is None

    async def test_an_object_that_exists_is_not_forgotten(
        self, bench: Bench, primary: Primary[Thing]
    ) -> None:
        stored = await bench.put("a", value())
        await primary.forget("a")
        assert await bench.store.get("a") == stored


class TestApplying:
    async def test_what_does_not_exist_is_created_with_its_owner(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop") as sync:
            revision = await secondary.apply("x", thing("hi"))
        stored = await bench.store.get("x")
        assert stored.revision == revision
        owner = secondary.owner_of(stored)
        assert owner is not None
        assert (owner.kind, owner.key) == (OWNER_KIND, "shop")
        assert (sync.created, sync.updated) == (1, 0)

    async def test_only_what_the_type_knows_is_changed(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop") as sync:
            await secondary.apply("x", thing("1"))
            await bench.seen()
            found = await bench.document("x")
            odd = {
                **found,
                "metadata": {**found["metadata"], "x": 1, "finalizers": ["theirs"]},
                "spec": {"text": "0", "y": 2},
                "status": {"z": 3},
            }
            await bench.put("x", msgspec.json.encode(odd))
            await secondary.apply("x", thing("2"))
        found = await bench.document("x")
        assert (found["metadata"]["x"], found["spec"]["y"], found["status"]) == (1, 2, {"z": 3})
        assert found["metadata"]["finalizers"] == ["theirs"]
        assert found["spec"]["text"] == "2"
        assert sync.updated == 1

    async def test_what_would_not_change_is_not_sent(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop") as sync:
            revision = await secondary.apply("x", thing("hi", "g"))
            assert await secondary.apply("x", thing("hi", "g")) == revision
            await bench.seen()
            assert await secondary.apply("x", thing("hi", "g")) == revision
        assert bench.store.writes == 1
        assert (sync.created, sync.updated) == (1, 0)

    async def test_what_was_deleted_meanwhile_is_made_again(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop"):
            await secondary.apply("x", thing("1"))
            await bench.store.delete("x")
            await secondary.apply("x", thing("2"))
        assert (await bench.document("x"))["spec"]["text"] == "2"

    async def test_what_is_nobodys_is_refused(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        stored = await bench.put("x", value())
        with Sync("shop"), pytest.raises(ExistsError) as raised:
            await secondary.apply("x", thing("mine"))
        assert str(raised.value) == (
            'Resource "x" already exists and is not managed by this controller: '
            "it is owned by nobody; adopt=True takes it over"
        )
        assert await bench.store.get("x") == stored

    async def test_what_is_anothers_is_refused_and_says_whose_it_is(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        with Sync("bar"):
            await secondary.apply("x", thing("theirs"))
        with Sync("shop"), pytest.raises(ExistsError, match=r"owned by App\.apps bar"):
            await secondary.apply("x", thing("mine"))
        assert (await bench.document("x"))["spec"]["text"] == "theirs"

    async def test_what_became_anothers_unseen_is_refused(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop"):
            await secondary.apply("x", thing("mine"))
        await bench.seen()
        stored = await bench.store.get("x")
        stolen = stored.value.replace(b"shop", b"bar")
        await bench.store.update("x", stolen, revision=stored.revision)
        with Sync("shop"), pytest.raises(ExistsError):
            await secondary.apply("x", thing("changed"))

    async def test_what_is_asked_for_is_adopted(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        await bench.put("x", value("theirs", labels={"kept": "yes"}))
        with Sync("shop"):
            await secondary.apply("x", thing("mine"), adopt=True)
        found = await bench.document("x")
        assert found["metadata"]["labels"]["kept"] == "yes"
        assert found["metadata"]["labels"][NAMES.key] == "shop"

    @pytest.mark.parametrize("text", [b"", b"no JSON", b'{"spec": {"text": 1}}'])
    async def test_our_own_that_was_spoiled_is_replaced(
        self, bench: Bench, secondary: Secondary[Thing], text: bytes
    ) -> None:
        with Sync("shop"):
            await secondary.apply("x", thing("mine"))
        await bench.put("x", text)
        with Sync("shop"):
            await secondary.apply("x", thing("mine"))
        assert (await bench.document("x"))["spec"]["text"] == "mine"

    async def test_what_somebody_put_where_our_own_was_deleted_is_refused(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop"):
            await secondary.apply("x", thing("mine"))
        await bench.store.delete("x")
        await bench.put("x", value("theirs"))
        with Sync("shop"), pytest.raises(ExistsError):
            await secondary.apply("x", thing("mine"))
        assert (await bench.document("x"))["spec"]["text"] == "theirs"

    async def test_outside_a_sync_it_is_refused(self, secondary: Secondary[Thing]) -> None:
        with pytest.raises(UsageError, match="only within a sync handler"):
            await secondary.apply("x", thing("mine"))

    def test_a_plain_kind_is_refused(self, bench: Bench) -> None:
        plain = natsctl.kv(dict, bucket="plain")
        informer = Informer(MemoryStore(plain), plain)
        with pytest.raises(UsageError, match="no labels, finalizers or status"):
            Secondary(informer, bench.barrier, OwnWrites(lambda *_: None), NAMES, OWNER_KIND)


class TestCreating:
    async def test_a_new_object_has_its_owner(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop") as sync:
            await secondary.create("x", thing("hi"))
        assert (await bench.document("x"))["metadata"]["labels"] == {
            NAMES.kind: OWNER_KIND,
            NAMES.key: "shop",
        }
        assert sync.created == 1

    async def test_our_own_that_exists_is_a_conflict(self, secondary: Secondary[Thing]) -> None:
        with Sync("shop"):
            await secondary.create("x", thing("1"))
            with pytest.raises(ConflictError) as raised:
                await secondary.create("x", thing("2"))
        assert not isinstance(raised.value, ExistsError)

    async def test_anothers_that_exists_is_refused(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        await bench.put("x", value())
        with Sync("shop"), pytest.raises(ExistsError, match='Resource "x" already exists'):
            await secondary.create("x", thing("mine"))

    async def test_outside_a_sync_it_is_refused(self, secondary: Secondary[Thing]) -> None:
        with pytest.raises(UsageError, match="only within a sync handler"):
            await secondary.create("x", thing("mine"))


class TestDeletingOwned:
    async def test_our_own_goes(self, bench: Bench, secondary: Secondary[Thing]) -> None:
        with Sync("shop") as sync:
            await secondary.apply("x", thing("hi"))
            await secondary.delete("x")
        assert bench.store.keys() == []
        assert sync.deleted == 1

    async def test_what_is_gone_is_no_error(self, secondary: Secondary[Thing]) -> None:
        with Sync("shop") as sync:
            await secondary.delete("x")
        assert sync.deleted == 0

    async def test_what_the_cache_does_not_know_yet_goes_too(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop"):
            await secondary.apply("x", thing("hi"))
        with Sync("shop"):
            await secondary.delete("x")
        assert bench.store.keys() == []

    async def test_what_is_anothers_stays(self, bench: Bench, secondary: Secondary[Thing]) -> None:
        with Sync("bar"):
            await secondary.apply("x", thing("theirs"))
        with Sync("shop"), pytest.raises(ExistsError, match=r"owned by App\.apps bar"):
            await secondary.delete("x")
        assert bench.store.keys() == ["x"]

    async def test_what_changed_meanwhile_goes_all_the_same(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop"):
            await secondary.apply("x", thing("hi"))
            await bench.seen()
            stored = await bench.store.get("x")
            changed = stored.value.replace(b'"hi"', b'"ho"')
            await bench.store.update("x", changed, revision=stored.revision)
            await secondary.delete("x")
        assert bench.store.keys() == []

    async def test_exactly_one_revision_can_be_deleted(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        stale = await bench.put("x", value("1"))
        await bench.put("x", value("2"))
        with pytest.raises(ConflictError):
            await secondary.delete_stored(stale)

    async def test_outside_a_sync_it_is_refused(self, secondary: Secondary[Thing]) -> None:
        with pytest.raises(UsageError, match="only within a sync handler"):
            await secondary.delete("x")


class TestOwned:
    async def test_they_are_those_of_the_key_being_synced(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        for owner in ("shop", "bar"):
            with Sync(owner):
                await secondary.apply(f"{owner}.x", thing(owner))
        await bench.seen()
        with Sync("shop"):
            assert list(secondary.owned()) == ["shop.x"]
            assert list(secondary.owned("bar")) == ["bar.x"]
        assert list(secondary.owned("shop")) == ["shop.x"]

    async def test_what_the_sync_has_made_and_deleted_counts(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop"):
            await secondary.apply("old", thing("old"))
            await bench.seen()
            await secondary.apply("new", thing("new"))
            await secondary.delete("old")
            assert list(secondary.owned()) == ["new"]

    async def test_those_of_another_kind_of_owner_are_not_ours(
        self, bench: Bench, secondary: Secondary[Thing]
    ) -> None:
        labels = {NAMES.kind: "Other.apps", NAMES.key: "shop"}
        await bench.put("x", value(labels=labels))
        assert secondary.owned("shop") == {}

    async def test_outside_a_sync_a_key_must_be_given(self, secondary: Secondary[Thing]) -> None:
        with pytest.raises(UsageError):
            secondary.owned()


class TestNews:
    """Every change of a secondary is told, with the key whose sync made it."""

    async def test_what_a_sync_wrote_is_known_as_its_own(
        self, bench: Bench, secondary: Secondary[Thing], news: list[tuple[str, str | None]]
    ) -> None:
        with Sync("shop"):
            await secondary.apply("x", thing("1"))
            await secondary.apply("x", thing("2"))
            await secondary.create("y", thing("1"))
            await secondary.delete("y")
        await bench.seen()
        assert news == [("x", "shop"), ("x", "shop"), ("y", "shop"), ("y", "shop")]

    async def test_what_others_wrote_is_nobodys(
        self, bench: Bench, secondary: Secondary[Thing], news: list[tuple[str, str | None]]
    ) -> None:
        await bench.put("x", value("1"))
        await bench.store.delete("x")
        await bench.seen()
        assert news == [("x", None), ("x", None)]

    async def test_what_was_deleted_outside_a_sync_is_nobodys(
        self, bench: Bench, secondary: Secondary[Thing], news: list[tuple[str, str | None]]
    ) -> None:
        await secondary.delete_stored(await bench.put("x", value("1")))
        await bench.seen()
        assert news == [("x", None), ("x", None)]
