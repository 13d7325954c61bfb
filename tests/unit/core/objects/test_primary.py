"""Reads and writes of primaries, secondaries and tertiaries."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

import natsctl
from natsctl import OwnerNames, Primary, Secondary, Tertiary
from natsctl.controller.slots.owned import OWNER_INDEX
from natsctl.core.informer import Informer
from natsctl.core.sync import Sync
from natsctl.core.writes import Barrier, OwnWrites
from natsctl.errors import (
    ConflictError,
    ExistsError,
    InvalidObjectError,
    NotFoundError,
    UsageError,
)
from natsctl.model.store import Change, Stored
from natsctl.testing import MemoryStore
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


class Stage:
    """One store with an informer and a barrier."""

    def __init__(self) -> None:
        self.store = MemoryStore(THINGS)
        self.barrier = Barrier()
        self.informer = Informer(
            self.store,
            THINGS,
            indexes={
                OWNER_INDEX: NAMES.index(THINGS, OWNER_KIND),
                "group": lambda stored_thing: stored_thing.spec.groups,
            },
        )

    async def put(self, key: str, text: bytes) -> Stored:
        """Write as another client and wait until the cache shows the write."""
        try:
            revision = (await self.store.get(key)).revision
        except NotFoundError:
            stored = await self.store.create(key, text)
        else:
            stored = await self.store.update(key, text, revision=revision)
        await self.synced()
        return stored

    async def synced(self) -> None:
        """Wait until the cache shows the store."""
        await caught_up(self.informer, self.store)
        await asyncio.sleep(0.01)

    async def document(self, key: str) -> dict[str, Any]:
        return document(await self.store.get(key))


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    async with informed(stage.informer):
        yield stage


@pytest.fixture
def primary(stage: Stage) -> Primary[Thing]:
    return Primary(stage.informer, stage.barrier)


@pytest.fixture
def writers() -> list[tuple[str, str | None]]:
    """Keys of the changes, each with the key whose sync wrote it."""
    return []


@pytest.fixture
async def secondary(
    stage: Stage, writers: list[tuple[str, str | None]]
) -> AsyncIterator[Secondary[Thing]]:
    def record(change: Change[Any], writer: str | None) -> None:
        writers.append((change.key, writer))

    own = OwnWrites(record)
    async with stage.informer.subscribe(own.see):
        yield Secondary(stage.informer, stage.barrier, own, NAMES, OWNER_KIND)


class TestReads:
    async def test_get_reads_the_cache(self, stage: Stage, primary: Primary[Thing]) -> None:
        await stage.put("a", value("hi"))
        writes = stage.store.writes
        stage.store.fail(ConflictError("the store is not read"))
        assert primary.get("a") == thing("hi")
        assert primary.get("b") is None
        assert primary.items() == {"a": thing("hi")}
        assert stage.store.writes == writes

    async def test_read_reads_the_store(self, stage: Stage, primary: Primary[Thing]) -> None:
        await stage.store.create("a", value("hi"))
        assert primary.get("a") is None
        assert await primary.read("a") == thing("hi")
        assert await primary.read("b") is None

    async def test_objects_are_found_by_index(self, stage: Stage, primary: Primary[Thing]) -> None:
        await stage.put("a", value("hi", "x"))
        await stage.put("b", value("ho", "y"))
        assert primary.by_index("group", "x") == {"a": thing("hi", "x")}
        assert primary.by_index("group", "z") == {}

    async def test_the_last_valid_state_is_read_beside_the_error(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value("hi"))
        assert primary.error("a") is None
        await stage.put("a", b'{"spec": {"text": 1}}')
        assert primary.get("a") == thing("hi")
        assert isinstance(primary.error("a"), InvalidObjectError)

    async def test_read_of_an_invalid_object_raises_its_error(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", b"no JSON")
        with pytest.raises(InvalidObjectError):
            await primary.read("a")

    async def test_a_tertiary_is_read_only(self, stage: Stage) -> None:
        tertiary = Tertiary(stage.informer, stage.barrier)
        await stage.put("a", value("hi"))
        assert tertiary.get("a") == thing("hi")
        assert not hasattr(tertiary, "put")
        assert not hasattr(tertiary, "apply")


class TestReadsWithinASync:
    """A sync reads its own writes before the cache shows them."""

    async def test_a_put_object_is_read_back(self, primary: Primary[Thing]) -> None:
        with Sync("a"):
            await primary.put("a", thing("hi", "x"))
            cached = primary.get("a")
            assert cached is not None
            assert cached.spec == thing("hi", "x").spec
            assert list(primary.keys()) == list(primary.items()) == ["a"]
            assert list(primary.by_index("group", "x")) == ["a"]

    async def test_an_object_that_left_an_index_is_not_found_by_it(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value("hi", "x"))
        with Sync("a"):
            await primary.put("a", thing("hi", "y"))
            assert primary.by_index("group", "x") == {}
            assert list(primary.by_index("group", "y")) == ["a"]

    async def test_a_deleted_object_is_not_read(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value("hi", "x"))
        with Sync("a"):
            await primary.delete("a")
            assert primary.get("a") is None
            assert list(primary.keys()) == []
            assert primary.by_index("group", "x") == {}

    async def test_a_marked_object_has_a_deletion_timestamp(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value(finalizers=["x"]))
        with Sync("a"):
            await primary.delete("a")
            cached = primary.get("a")
            assert cached is not None
            assert cached.metadata.deletion_timestamp is not None

    async def test_an_object_deleted_with_its_last_finalizer_is_not_read(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value(finalizers=["x"]))
        await primary.delete("a")
        await stage.synced()
        with Sync("a"):
            await primary.remove_finalizer("a", "x")
            assert primary.get("a") is None
            assert "a" in stage.barrier.unseen

    async def test_an_updated_status_is_read_back(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value())
        with Sync("a"):
            await primary.update_status("a", {"ready": True})
            cached = primary.get("a")
            assert cached is not None
            assert cached.status == {"ready": True}


class TestPut:
    async def test_a_new_object_gets_a_generation(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        revision = await primary.put("a", thing("hi"))
        assert (await stage.store.get("a")).revision == revision
        assert (await stage.document("a"))["metadata"]["generation"] == 1

    async def test_fields_unknown_to_the_type_stay(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        foreign = {
            "metadata": {"x": 1},
            "spec": {"text": "1", "y": 2},
            "status": {"z": 3},
            "data": 4,
        }
        await stage.put("a", msgspec.json.encode(foreign))
        await primary.put("a", thing("2"))
        content = await stage.document("a")
        assert (content["metadata"]["x"], content["spec"]["y"]) == (1, 2)
        assert (content["status"], content["data"]) == ({"z": 3}, 4)
        assert content["spec"]["text"] == "2"

    async def test_an_unchanged_object_is_not_written(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        revision = await primary.put("a", thing("hi", "x"))
        await stage.synced()
        assert await primary.put("a", thing("hi", "x")) == revision
        assert stage.store.writes == 1

    async def test_fields_written_concurrently_by_others_stay(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        stored = await stage.put("a", value("1"))
        await stage.store.update("a", value("1", x=1), revision=stored.revision)
        await primary.put("a", thing("2"))
        assert (await stage.document("a"))["metadata"]["x"] == 1

    @pytest.mark.parametrize("text", [b"", b"no JSON", b'{"spec": {"text": 1}, "data": 1}'])
    async def test_put_replaces_an_invalid_object(
        self, stage: Stage, primary: Primary[Thing], text: bytes
    ) -> None:
        await stage.put("a", text)
        await primary.put("a", thing("hi"))
        await stage.synced()
        assert primary.error("a") is None
        assert primary.get("a") is not None

    async def test_create_refuses_an_existing_object(self, primary: Primary[Thing]) -> None:
        await primary.create("a", thing("1"))
        with pytest.raises(ConflictError):
            await primary.create("a", thing("2"))

    async def test_update_refuses_an_outdated_revision(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        first = await primary.create("a", thing("1"))
        second = await primary.update("a", thing("2"), revision=first)
        with pytest.raises(ConflictError, match=f"at revision {second}, not at {first}"):
            await primary.update("a", thing("3"), revision=first)
        assert (await stage.document("a"))["metadata"]["generation"] == 2

    async def test_update_of_a_missing_object_raises_not_found(
        self, primary: Primary[Thing]
    ) -> None:
        with pytest.raises(NotFoundError):
            await primary.update("a", thing("1"), revision=1)


class TestDelete:
    async def test_an_object_without_finalizers_is_deleted(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value())
        await primary.delete("a")
        assert stage.store.keys() == []

    async def test_an_object_with_finalizers_is_marked(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value(finalizers=["x"]))
        await primary.delete("a")
        assert (await stage.document("a"))["metadata"]["deletionTimestamp"]

    async def test_delete_of_a_missing_object_raises_not_found(
        self, primary: Primary[Thing]
    ) -> None:
        with pytest.raises(NotFoundError):
            await primary.delete("a")


class TestUpdateStatus:
    async def test_a_status_is_merged_into_the_existing_one(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        foreign = {"spec": {"text": "hi"}, "status": {"a": 1, "b": {"c": 1, "d": 2}}}
        await stage.put("a", msgspec.json.encode(foreign))
        await primary.update_status("a", {"a": None, "b": {"c": 3}})
        assert (await stage.document("a"))["status"] == {"b": {"c": 3, "d": 2}}

    async def test_a_status_update_changes_nothing_else(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        foreign = {"metadata": {"x": 1, "generation": 2}, "spec": {"text": "hi", "y": 1}, "data": 1}
        await stage.put("a", msgspec.json.encode(foreign))
        await primary.update_status("a", {"ready": True})
        content = await stage.document("a")
        assert content.pop("status") == {"observedGeneration": 2, "ready": True}
        assert content == foreign

    async def test_a_status_may_be_a_struct(self, stage: Stage, primary: Primary[Thing]) -> None:
        class Status(msgspec.Struct, rename="camel"):
            ready_parts: tuple[str, ...]

        await stage.put("a", value())
        await primary.update_status("a", Status(("x", "y")))
        assert (await stage.document("a"))["status"] == {"readyParts": ["x", "y"]}

    async def test_an_unchanged_status_is_not_written(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value(generation=1))
        status = {"ready": True, "parts": ("x", "y"), "odd": {"n": None}}
        revision = await primary.update_status("a", status)
        await stage.synced()
        assert await primary.update_status("a", status) == revision
        assert stage.store.writes == 2

    async def test_changes_made_concurrently_by_others_stay(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        stored = await stage.put("a", value("1"))
        await stage.store.update("a", value("2"), revision=stored.revision)
        await primary.update_status("a", {"ready": True})
        assert (await stage.document("a"))["spec"]["text"] == "2"

    async def test_the_observed_generation_is_that_of_the_object_read_by_the_sync(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value("1", generation=1))
        with Sync("a"):
            primary.get("a")
            await stage.put("a", value("2", generation=2))
            await primary.update_status("a", {"ready": True})
        assert (await stage.document("a"))["status"]["observedGeneration"] == 1
        with Sync("a"):
            primary.get("a")
            await primary.update_status("a", {"ready": True})
        assert (await stage.document("a"))["status"]["observedGeneration"] == 2

    async def test_the_observed_generation_may_be_given(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value(generation=3))
        await primary.update_status("a", {"observedGeneration": 1})
        assert (await stage.document("a"))["status"]["observedGeneration"] == 1

    async def test_a_status_update_of_a_missing_object_raises_not_found(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value())
        await stage.store.delete("a")
        with pytest.raises(NotFoundError):
            await primary.update_status("a", {"ready": True})
        assert stage.store.keys() == []

    async def test_a_status_update_of_a_plain_kind_is_refused(self) -> None:
        plain = natsctl.kv(dict, bucket="plain")
        primary = Primary(Informer(MemoryStore(plain), plain), Barrier())
        with pytest.raises(UsageError, match="no labels, finalizers or status"):
            await primary.update_status("a", {"ready": True})


class TestFinalizers:
    async def test_a_finalizer_is_added_to_those_of_others(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value(finalizers=["x"]))
        await primary.add_finalizer("a", "y")
        await primary.add_finalizer("a", "y")
        assert (await stage.document("a"))["metadata"]["finalizers"] == ["x", "y"]

    async def test_removing_a_finalizer_keeps_those_of_others(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value(finalizers=["x", "y", "z"]))
        await primary.remove_finalizer("a", "y")
        assert (await stage.document("a"))["metadata"]["finalizers"] == ["x", "z"]

    async def test_a_finalizer_for_a_missing_object_raises_not_found(
        self, primary: Primary[Thing]
    ) -> None:
        with pytest.raises(NotFoundError):
            await primary.add_finalizer("a", "x")


class TestLastStates:
    async def test_the_last_state_of_a_deleted_object_comes_from_its_history(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value("1"))
        await stage.put("a", value("2"))
        await stage.store.delete("a")
        assert await primary.last("a") == thing("2")

    async def test_an_invalid_last_state_is_skipped(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value("1"))
        await stage.put("a", b"no JSON")
        await stage.store.delete("a")
        assert await primary.last("a") == thing("1")

    async def test_a_deletion_seen_by_the_cache_needs_no_history(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        primary.queue.note("a").last = Stored("a", 1, value("seen"))
        assert await primary.last("a") == thing("seen")

    async def test_a_key_that_never_existed_has_no_last_state(
        self, primary: Primary[Thing]
    ) -> None:
        assert await primary.last("a") is None
        assert await primary.deleted_at("a") is None

    async def test_a_forgotten_object_has_no_last_state(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        await stage.put("a", value())
        deleted_at = await stage.store.delete("a")
        assert await primary.deleted_at("a") == deleted_at
        await primary.forget("a")
        assert await primary.last("a") is None

    async def test_an_existing_object_is_not_forgotten(
        self, stage: Stage, primary: Primary[Thing]
    ) -> None:
        stored = await stage.put("a", value())
        await primary.forget("a")
        assert await stage.store.get("a") == stored


class TestApply:
    async def test_a_missing_object_is_created_with_its_owner(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop") as sync:
            revision = await secondary.apply("x", thing("hi"))
        stored = await stage.store.get("x")
        assert stored.revision == revision
        owner = secondary.owner_of(stored)
        assert owner is not None
        assert (owner.kind, owner.key) == (OWNER_KIND, "shop")
        assert (sync.created, sync.updated) == (1, 0)

    async def test_only_fields_of_the_type_are_changed(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop") as sync:
            await secondary.apply("x", thing("1"))
            await stage.synced()
            content = await stage.document("x")
            foreign = {
                **content,
                "metadata": {**content["metadata"], "x": 1, "finalizers": ["theirs"]},
                "spec": {"text": "0", "y": 2},
                "status": {"z": 3},
            }
            await stage.put("x", msgspec.json.encode(foreign))
            await secondary.apply("x", thing("2"))
        content = await stage.document("x")
        assert (content["metadata"]["x"], content["spec"]["y"], content["status"]) == (
            1,
            2,
            {"z": 3},
        )
        assert content["metadata"]["finalizers"] == ["theirs"]
        assert content["spec"]["text"] == "2"
        assert sync.updated == 1

    async def test_an_unchanged_object_is_not_written(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop") as sync:
            revision = await secondary.apply("x", thing("hi", "g"))
            assert await secondary.apply("x", thing("hi", "g")) == revision
            await stage.synced()
            assert await secondary.apply("x", thing("hi", "g")) == revision
        assert stage.store.writes == 1
        assert (sync.created, sync.updated) == (1, 0)

    async def test_an_object_deleted_concurrently_is_created_again(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop"):
            await secondary.apply("x", thing("1"))
            await stage.store.delete("x")
            await secondary.apply("x", thing("2"))
        assert (await stage.document("x"))["spec"]["text"] == "2"

    async def test_apply_does_not_adopt_an_existing_object(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        stored = await stage.put("x", value())
        with Sync("shop"), pytest.raises(ExistsError) as raised:
            await secondary.apply("x", thing("mine"))
        assert str(raised.value) == (
            'Resource "x" already exists and is not managed by this controller: '
            "it is owned by nobody; adopt=True takes it over"
        )
        assert await stage.store.get("x") == stored

    async def test_an_object_of_another_owner_is_refused_with_its_name(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        with Sync("bar"):
            await secondary.apply("x", thing("theirs"))
        with Sync("shop"), pytest.raises(ExistsError, match=r"owned by App\.apps bar"):
            await secondary.apply("x", thing("mine"))
        assert (await stage.document("x"))["spec"]["text"] == "theirs"

    async def test_an_object_that_got_another_owner_concurrently_is_refused(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop"):
            await secondary.apply("x", thing("mine"))
        await stage.synced()
        stored = await stage.store.get("x")
        reassigned = stored.value.replace(b"shop", b"bar")
        await stage.store.update("x", reassigned, revision=stored.revision)
        with Sync("shop"), pytest.raises(ExistsError):
            await secondary.apply("x", thing("changed"))

    async def test_an_existing_object_is_adopted_if_adopt_is_set(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        await stage.put("x", value("theirs", labels={"kept": "yes"}))
        with Sync("shop"):
            await secondary.apply("x", thing("mine"), adopt=True)
        content = await stage.document("x")
        assert content["metadata"]["labels"]["kept"] == "yes"
        assert content["metadata"]["labels"][NAMES.key] == "shop"

    @pytest.mark.parametrize("text", [b"", b"no JSON", b'{"spec": {"text": 1}}'])
    async def test_an_own_object_that_became_invalid_is_replaced(
        self, stage: Stage, secondary: Secondary[Thing], text: bytes
    ) -> None:
        with Sync("shop"):
            await secondary.apply("x", thing("mine"))
        await stage.put("x", text)
        with Sync("shop"):
            await secondary.apply("x", thing("mine"))
        assert (await stage.document("x"))["spec"]["text"] == "mine"

    async def test_an_object_of_others_at_the_key_of_a_deleted_own_one_is_refused(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop"):
            await secondary.apply("x", thing("mine"))
        await stage.store.delete("x")
        await stage.put("x", value("theirs"))
        with Sync("shop"), pytest.raises(ExistsError):
            await secondary.apply("x", thing("mine"))
        assert (await stage.document("x"))["spec"]["text"] == "theirs"

    async def test_apply_outside_a_sync_is_refused(self, secondary: Secondary[Thing]) -> None:
        with pytest.raises(UsageError, match="only within a sync handler"):
            await secondary.apply("x", thing("mine"))

    def test_a_plain_kind_is_refused(self, stage: Stage) -> None:
        plain = natsctl.kv(dict, bucket="plain")
        informer = Informer(MemoryStore(plain), plain)
        with pytest.raises(UsageError, match="no labels, finalizers or status"):
            Secondary(informer, stage.barrier, OwnWrites(lambda *_: None), NAMES, OWNER_KIND)


class TestCreate:
    async def test_a_new_object_has_its_owner(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop") as sync:
            await secondary.create("x", thing("hi"))
        assert (await stage.document("x"))["metadata"]["labels"] == {
            NAMES.kind: OWNER_KIND,
            NAMES.key: "shop",
        }
        assert sync.created == 1

    async def test_an_existing_own_object_is_a_conflict(self, secondary: Secondary[Thing]) -> None:
        with Sync("shop"):
            await secondary.create("x", thing("1"))
            with pytest.raises(ConflictError) as raised:
                await secondary.create("x", thing("2"))
        assert not isinstance(raised.value, ExistsError)

    async def test_an_existing_object_of_others_is_refused(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        await stage.put("x", value())
        with Sync("shop"), pytest.raises(ExistsError, match='Resource "x" already exists'):
            await secondary.create("x", thing("mine"))

    async def test_create_outside_a_sync_is_refused(self, secondary: Secondary[Thing]) -> None:
        with pytest.raises(UsageError, match="only within a sync handler"):
            await secondary.create("x", thing("mine"))


class TestDeleteOwned:
    async def test_an_own_object_is_deleted(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop") as sync:
            await secondary.apply("x", thing("hi"))
            await secondary.delete("x")
        assert stage.store.keys() == []
        assert sync.deleted == 1

    async def test_a_missing_object_is_no_error(self, secondary: Secondary[Thing]) -> None:
        with Sync("shop") as sync:
            await secondary.delete("x")
        assert sync.deleted == 0

    async def test_an_object_that_is_not_in_the_cache_yet_is_deleted(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop"):
            await secondary.apply("x", thing("hi"))
        with Sync("shop"):
            await secondary.delete("x")
        assert stage.store.keys() == []

    async def test_an_object_of_another_owner_stays(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        with Sync("bar"):
            await secondary.apply("x", thing("theirs"))
        with Sync("shop"), pytest.raises(ExistsError, match=r"owned by App\.apps bar"):
            await secondary.delete("x")
        assert stage.store.keys() == ["x"]

    async def test_an_object_changed_concurrently_is_deleted(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop"):
            await secondary.apply("x", thing("hi"))
            await stage.synced()
            stored = await stage.store.get("x")
            changed = stored.value.replace(b'"hi"', b'"ho"')
            await stage.store.update("x", changed, revision=stored.revision)
            await secondary.delete("x")
        assert stage.store.keys() == []

    async def test_delete_stored_deletes_only_the_given_revision(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        stale = await stage.put("x", value("1"))
        await stage.put("x", value("2"))
        with pytest.raises(ConflictError):
            await secondary.delete_stored(stale)

    async def test_delete_outside_a_sync_is_refused(self, secondary: Secondary[Thing]) -> None:
        with pytest.raises(UsageError, match="only within a sync handler"):
            await secondary.delete("x")


class TestOwned:
    async def test_owned_returns_objects_of_the_synced_key(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        for owner in ("shop", "bar"):
            with Sync(owner):
                await secondary.apply(f"{owner}.x", thing(owner))
        await stage.synced()
        with Sync("shop"):
            assert list(secondary.owned()) == ["shop.x"]
            assert list(secondary.owned("bar")) == ["bar.x"]
        assert list(secondary.owned("shop")) == ["shop.x"]

    async def test_owned_includes_the_writes_of_the_sync(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        with Sync("shop"):
            await secondary.apply("old", thing("old"))
            await stage.synced()
            await secondary.apply("new", thing("new"))
            await secondary.delete("old")
            assert list(secondary.owned()) == ["new"]

    async def test_owned_excludes_objects_of_another_owner_kind(
        self, stage: Stage, secondary: Secondary[Thing]
    ) -> None:
        labels = {NAMES.kind: "Other.apps", NAMES.key: "shop"}
        await stage.put("x", value(labels=labels))
        assert secondary.owned("shop") == {}

    async def test_owned_outside_a_sync_needs_a_key(self, secondary: Secondary[Thing]) -> None:
        with pytest.raises(UsageError):
            secondary.owned()


class TestWriters:
    """Every change of a secondary is passed on with the key whose sync wrote it."""

    async def test_a_write_of_a_sync_is_attributed_to_its_key(
        self, stage: Stage, secondary: Secondary[Thing], writers: list[tuple[str, str | None]]
    ) -> None:
        with Sync("shop"):
            await secondary.apply("x", thing("1"))
            await secondary.apply("x", thing("2"))
            await secondary.create("y", thing("1"))
            await secondary.delete("y")
        await stage.synced()
        assert writers == [("x", "shop"), ("x", "shop"), ("y", "shop"), ("y", "shop")]

    async def test_a_write_by_others_has_no_writer(
        self, stage: Stage, secondary: Secondary[Thing], writers: list[tuple[str, str | None]]
    ) -> None:
        await stage.put("x", value("1"))
        await stage.store.delete("x")
        await stage.synced()
        assert writers == [("x", None), ("x", None)]

    async def test_a_deletion_outside_a_sync_has_no_writer(
        self, stage: Stage, secondary: Secondary[Thing], writers: list[tuple[str, str | None]]
    ) -> None:
        await secondary.delete_stored(await stage.put("x", value("1")))
        await stage.synced()
        assert writers == [("x", None), ("x", None)]
