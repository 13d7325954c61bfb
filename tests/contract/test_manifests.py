"""What every store of manifests does: it lays them over its objects, and knows who said what."""

import uuid
from typing import Any

import msgspec
import pytest

from natsctl.errors import (
    ConflictError,
    FieldConflictError,
    ImmutableFieldError,
    InvalidObjectError,
    NotFoundError,
)
from natsctl.model.documents import Document, metadata_of, parse
from natsctl.model.managed_fields import lost_fields
from natsctl.model.store import Applied, Deleted, ManifestStore, Stored
from tests.support.stores.backends import ManifestBackend, listing, take

OURS, FORMER, THEIRS = "natsctl/apps", "natsctl/old", "people"
NOWHERE = "00000000-0000-4000-8000-000000000000"


def manifest(name: str = "shop", *, labels: dict[str, str] | None = None, **spec: Any) -> Document:
    """Return a manifest of a note."""
    metadata = {"name": name, **({"labels": labels} if labels else {})}
    return {
        "apiVersion": "contract.test/v1",
        "kind": "Note",
        "metadata": metadata,
        "spec": spec or {"text": "hi"},
    }


def uid(stored: Stored) -> str:
    found = metadata_of(parse(stored.value))["uid"]
    assert isinstance(found, str)
    return found


def spec(stored: Stored) -> object:
    return parse(stored.value)["spec"]


@pytest.fixture
async def store(manifests: ManifestBackend) -> ManifestStore:
    return await manifests.stores.open(manifests.kind())


async def create(store: ManifestStore, name: str = "shop", **spec: Any) -> Stored:
    """Apply what is not there."""
    return await store.apply(manifest(name, **spec), manager=OURS, uid="")


class TestLocating:
    async def test_a_manifest_without_a_namespace_is_of_its_name(
        self, store: ManifestStore
    ) -> None:
        assert await store.locate(manifest("shop")) == "shop"

    async def test_one_with_a_namespace_is_refused_where_the_kind_has_none(
        self, store: ManifestStore
    ) -> None:
        placed = manifest("shop")
        metadata_of(placed)["namespace"] = "default"
        with pytest.raises(InvalidObjectError, match="namespace"):
            await store.locate(placed)

    async def test_of_a_namespaced_kind_the_key_has_both(self, manifests: ManifestBackend) -> None:
        store = await manifests.stores.open(manifests.placed_kind())
        placed = {"metadata": {"namespace": "team-a", "name": "shop"}}
        assert await store.locate(placed) == "team-a/shop"  # type: ignore[arg-type]

    async def test_one_without_a_namespace_is_refused_where_the_kind_has_them(
        self, manifests: ManifestBackend
    ) -> None:
        store = await manifests.stores.open(manifests.placed_kind())
        with pytest.raises(InvalidObjectError, match="namespace"):
            await store.locate({"metadata": {"name": "shop"}})


class TestCreatingByApply:
    async def test_what_was_applied_is_there(self, store: ManifestStore) -> None:
        created = await create(store, text="hi", more=[1, {"a": None}])
        assert created.key == "shop"
        assert await store.get("shop") == created
        assert spec(created) == {"text": "hi", "more": [1, {"a": None}]}

    async def test_it_is_a_whole_document_of_the_kind(self, store: ManifestStore) -> None:
        document = parse((await create(store)).value)
        assert (document["apiVersion"], document["kind"]) == ("contract.test/v1", "Note")
        metadata = metadata_of(document)
        assert metadata["name"] == "shop"
        assert metadata["uid"]
        assert "managedFields" not in metadata
        assert str(metadata["creationTimestamp"]) > "2020"

    async def test_it_is_told_as_applied(self, store: ManifestStore) -> None:
        async with store.watch() as events:
            await listing(events)
            created = await create(store)
            assert await take(events, 1) == [Applied(created)]

    async def test_what_we_applied_before_is_not_created_again(self, store: ManifestStore) -> None:
        created = await create(store, text="1")
        with pytest.raises(ConflictError) as raised:
            await create(store, text="2")
        assert not isinstance(raised.value, FieldConflictError)
        assert await store.get("shop") == created

    async def test_nor_is_what_others_made(self, store: ManifestStore) -> None:
        made = await store.apply(manifest(text="1"), manager=THEIRS, uid="")
        with pytest.raises(ConflictError) as raised:
            await create(store, text="1", more=True)
        assert not isinstance(raised.value, FieldConflictError)
        assert await store.get("shop") == made

    async def test_nor_is_it_by_force(self, store: ManifestStore) -> None:
        made = await store.apply(manifest(text="1"), manager=THEIRS, uid="")
        with pytest.raises(ConflictError):
            await store.apply(manifest(text="2"), manager=OURS, uid="", force=True)
        assert await store.get("shop") == made

    async def test_nor_is_what_was_stored_without_an_apply(self, store: ManifestStore) -> None:
        made = await store.create("shop", msgspec.json.encode(manifest(text="1")))
        with pytest.raises(ConflictError):
            await create(store, text="2")
        assert await store.get("shop") == made

    async def test_what_was_deleted_is_created_anew(self, store: ManifestStore) -> None:
        before = await create(store)
        await store.delete("shop")
        again = await create(store)
        assert again.revision > before.revision
        assert uid(again) != uid(before)

    async def test_what_the_manifest_says_of_state_and_identity_is_ignored(
        self, store: ManifestStore
    ) -> None:
        old = manifest()
        metadata_of(old).update(resourceVersion="7", uid=NOWHERE)
        created = await store.apply(old, manager=OURS, uid="")
        assert uid(created) != NOWHERE
        assert await store.get("shop") == created


class TestApplyingAgain:
    async def test_the_object_says_what_the_manifest_says(self, store: ManifestStore) -> None:
        created = await create(store, text="1")
        changed = await store.apply(manifest(text="2"), manager=OURS, uid=uid(created))
        assert changed.revision > created.revision
        assert uid(changed) == uid(created)
        assert spec(changed) == {"text": "2"}
        assert await store.get("shop") == changed

    async def test_nothing_changes_where_it_says_so_already(self, store: ManifestStore) -> None:
        created = await create(store)
        assert await store.apply(manifest(), manager=OURS, uid=uid(created)) == created

    async def test_what_it_says_no_more_is_removed(self, store: ManifestStore) -> None:
        created = await create(store, text="1", more=True)
        changed = await store.apply(manifest(text="1"), manager=OURS, uid=uid(created))
        assert spec(changed) == {"text": "1"}

    async def test_what_others_say_beside_it_stays(self, store: ManifestStore) -> None:
        created = await create(store, text="1")
        await store.apply(manifest(theirs=True), manager=THEIRS, uid=uid(created))
        changed = await store.apply(manifest(text="2"), manager=OURS, uid=uid(created))
        assert spec(changed) == {"text": "2", "theirs": True}

    async def test_an_object_of_another_uid_is_left_alone(self, store: ManifestStore) -> None:
        created = await create(store)
        with pytest.raises(ConflictError):
            await store.apply(manifest(text="2"), manager=OURS, uid=NOWHERE)
        assert await store.get("shop") == created

    async def test_so_is_one_that_was_made_after_the_one_that_is_meant(
        self, store: ManifestStore
    ) -> None:
        before = await create(store, text="1")
        await store.delete("shop")
        again = await create(store, text="1")
        with pytest.raises(ConflictError):
            await store.apply(manifest(text="2"), manager=OURS, uid=uid(before), force=True)
        assert await store.get("shop") == again

    async def test_an_object_that_is_gone_is_not_made_again(self, store: ManifestStore) -> None:
        created = await create(store)
        await store.delete("shop")
        with pytest.raises(ConflictError):
            await store.apply(manifest(), manager=OURS, uid=uid(created))
        with pytest.raises(NotFoundError):
            await store.get("shop")


class TestConflictsOfFields:
    async def test_who_says_otherwise_is_named_with_the_field(self, store: ManifestStore) -> None:
        created = await create(store, text="1")
        with pytest.raises(FieldConflictError, match=r"natsctl/apps.*spec\.text") as raised:
            await store.apply(manifest(text="2"), manager=THEIRS, uid=uid(created))
        assert raised.value.managers == (OURS,)
        assert await store.get("shop") == created

    async def test_who_says_the_same_does_not_conflict(self, store: ManifestStore) -> None:
        created = await create(store, text="1")
        shared = await store.apply(manifest(text="1"), manager=THEIRS, uid=uid(created))
        assert spec(shared) == {"text": "1"}
        with pytest.raises(FieldConflictError) as raised:
            await store.apply(manifest(text="2"), manager=OURS, uid=uid(created))
        assert raised.value.managers == (THEIRS,)

    async def test_the_fields_in_question_are_told(self, store: ManifestStore) -> None:
        created = await store.apply(manifest(labels={"a.b/c": "1"}), manager=OURS, uid="")
        other = manifest(labels={"a.b/c": "2"}, text="2")
        with pytest.raises(FieldConflictError) as raised:
            await store.apply(other, manager=THEIRS, uid=uid(created))
        assert set(raised.value.fields) == {".metadata.labels.a.b/c", ".spec.text"}

    async def test_who_stores_it_as_a_whole_owns_what_that_changed(
        self, store: ManifestStore
    ) -> None:
        created = await create(store, text="1", more="1")
        document = parse(created.value)
        document["spec"] = {"text": "2", "more": "1"}
        value = msgspec.json.encode(document)
        updated = await store.update("shop", value, revision=created.revision)
        with pytest.raises(FieldConflictError) as raised:
            await store.apply(manifest(text="1", more="2"), manager=OURS, uid=uid(updated))
        assert raised.value.fields == (".spec.text",)

    async def test_force_takes_the_field(self, store: ManifestStore) -> None:
        created = await create(store, text="1")
        taken = await store.apply(manifest(text="2"), manager=THEIRS, uid=uid(created), force=True)
        assert spec(taken) == {"text": "2"}
        with pytest.raises(FieldConflictError) as raised:
            await store.apply(manifest(text="3"), manager=OURS, uid=uid(created))
        assert raised.value.managers == (THEIRS,)

    async def test_labels_have_managers_too(self, store: ManifestStore) -> None:
        created = await store.apply(manifest(labels={"a": "1"}), manager=OURS, uid="")
        other = manifest(labels={"a": "2"})
        with pytest.raises(FieldConflictError, match="labels"):
            await store.apply(other, manager=THEIRS, uid=uid(created))


class TestSharedFields:
    async def test_a_field_that_two_managers_say_alike_stays_when_one_says_it_no_more(
        self, store: ManifestStore
    ) -> None:
        created = await create(store, text="1", more=True)
        await store.apply(manifest(text="1"), manager=THEIRS, uid=uid(created), force=True)
        await store.apply(manifest(more=True), manager=THEIRS, uid=uid(created), force=True)
        assert spec(await store.get("shop")) == {"text": "1", "more": True}


class TestFormerManagers:
    async def test_fields_of_a_former_manager_are_taken_over_and_removed(
        self, store: ManifestStore
    ) -> None:
        former = manifest(text="1", gone=True)
        created = await store.apply(former, manager=FORMER, uid="")
        changed = await store.apply(manifest(text="2"), manager=OURS, uid=uid(created), force=True)
        assert spec(changed) == {"text": "2"}
        assert await store.get("shop") == changed
        managed = await store.managed("shop")
        assert [at.name for at in managed.managers] == [OURS]

    async def test_they_are_without_force_too(self, store: ManifestStore) -> None:
        created = await store.apply(manifest(text="1", gone=True), manager=FORMER, uid="")
        changed = await store.apply(manifest(text="2"), manager=OURS, uid=uid(created))
        assert spec(changed) == {"text": "2"}

    async def test_so_are_those_beside_our_own(self, store: ManifestStore) -> None:
        created = await create(store, text="1")
        theirs = {"theirs": True}
        await store.apply(manifest(**theirs), manager=THEIRS, uid=uid(created))  # type: ignore[arg-type]
        await store.apply(manifest(text="1", more=True), manager=FORMER, uid=uid(created))
        changed = await store.apply(manifest(text="1"), manager=OURS, uid=uid(created))
        assert spec(changed) == {"text": "1", **theirs}

    async def test_fields_of_other_managers_stay_theirs(self, store: ManifestStore) -> None:
        created = await create(store, text="1")
        await store.apply(manifest(theirs=True), manager=THEIRS, uid=uid(created))
        await store.apply(manifest(text="2"), manager=OURS, uid=uid(created))
        assert {at.name for at in (await store.managed("shop")).managers} == {OURS, THEIRS}


class TestManagers:
    async def test_what_was_applied_is_its_managers(self, store: ManifestStore) -> None:
        created = await create(store, text="1")
        managed = await store.managed("shop")
        assert managed.revision == created.revision
        [ours] = managed.managers
        assert (ours.name, ours.applied) == (OURS, True)
        assert ours.fields == {"f:spec": {"f:text": {}}}

    async def test_a_field_that_another_took_is_lost_to_it(self, store: ManifestStore) -> None:
        created = await create(store, text="1", more="1")
        taken = await store.apply(manifest(text="2"), manager=THEIRS, uid=uid(created), force=True)
        managed = await store.managed("shop")
        wanted = manifest(text="1", more="1")
        [lost] = lost_fields(wanted, parse(taken.value), managed.managers, OURS)
        assert (lost.path, lost.managers) == (".spec.text", (THEIRS,))

    async def test_of_what_is_not_there_nothing_is_found(self, store: ManifestStore) -> None:
        with pytest.raises(NotFoundError):
            await store.managed("shop")


class TestImmutableFields:
    async def test_they_are_named_and_the_object_stays(self, manifests: ManifestBackend) -> None:
        store = await manifests.stores.open(manifests.placed_kind())
        what = {"apiVersion": "v1", "kind": "ConfigMap", "immutable": True}
        where = {"namespace": "default", "name": f"fixed-{uuid.uuid4().hex[:8]}"}
        config: Document = {**what, "metadata": where, "data": {"a": "1"}}
        created = await store.apply(config, manager=OURS, uid="")
        changed = {**config, "data": {"a": "2"}}
        with pytest.raises(ImmutableFieldError) as raised:
            await store.apply(changed, manager=OURS, uid=uid(created), force=True)
        assert raised.value.fields == ("data",)
        assert await store.get(created.key) == created


class TestPatchingStatus:
    async def test_it_is_merged(self, store: ManifestStore) -> None:
        await create(store)
        await store.patch_status("shop", {"ready": True, "at": {"a": 1, "b": 2}})
        patched = await store.patch_status("shop", {"at": {"a": None, "c": 3}})
        assert parse(patched.value)["status"] == {"ready": True, "at": {"b": 2, "c": 3}}
        assert await store.get("shop") == patched

    async def test_the_rest_stays(self, store: ManifestStore) -> None:
        created = await create(store, text="1")
        patched = await store.patch_status("shop", {"ready": True})
        assert spec(patched) == {"text": "1"}
        assert patched.revision > created.revision

    async def test_nothing_else_changes_it(self, store: ManifestStore) -> None:
        created = await create(store)
        patched = await store.patch_status("shop", {"ready": True})
        updated = {**parse(patched.value), "spec": {"text": "2"}, "status": {"ready": False}}
        value = msgspec.json.encode(updated)
        replaced = await store.update("shop", value, revision=patched.revision)
        assert parse(replaced.value)["status"] == {"ready": True}
        applied = {**manifest(text="2"), "status": {"ready": False}}
        changed = await store.apply(applied, manager=OURS, uid=uid(created), force=True)
        assert parse(changed.value)["status"] == {"ready": True}

    async def test_of_a_stale_revision_it_is_refused(self, store: ManifestStore) -> None:
        created = await create(store)
        patched = await store.patch_status("shop", {"n": 1}, revision=created.revision)
        with pytest.raises(ConflictError):
            await store.patch_status("shop", {"n": 2}, revision=created.revision)
        assert await store.get("shop") == patched

    async def test_of_what_is_not_there_it_finds_nothing(self, store: ManifestStore) -> None:
        with pytest.raises(NotFoundError):
            await store.patch_status("shop", {"ready": True})


class TestDeletingByUid:
    async def test_the_object_that_is_meant_goes(self, store: ManifestStore) -> None:
        created = await create(store)
        async with store.watch() as events:
            await listing(events)
            gone = await store.delete("shop", revision=created.revision, uid=uid(created))
            [deleted] = await take(events, 1)
        assert isinstance(deleted, Deleted)
        assert created.revision <= gone <= deleted.revision

    async def test_one_of_another_uid_stays(self, store: ManifestStore) -> None:
        created = await create(store)
        with pytest.raises(ConflictError):
            await store.delete("shop", revision=created.revision, uid=NOWHERE)
        assert await store.get("shop") == created


class TestFinalizers:
    async def test_a_deletion_marks_what_has_finalizers(self, store: ManifestStore) -> None:
        held = manifest()
        metadata_of(held)["finalizers"] = ["contract.test/held"]
        created = await store.apply(held, manager=OURS, uid="")
        async with store.watch() as events:
            await listing(events)
            gone = await store.delete("shop", revision=created.revision)
            [marked] = await take(events, 1)
            assert isinstance(marked, Applied)
            assert metadata_of(parse(marked.stored.value))["deletionTimestamp"]
            assert created.revision <= gone < marked.stored.revision
            again = await store.delete("shop", revision=marked.stored.revision)
            assert again < marked.stored.revision
            await store.apply(manifest(), manager=OURS, uid=uid(created))
            deleted = (await take(events, 1))[0]
            if isinstance(deleted, Applied):  # a store may show the last state once more
                [deleted] = await take(events, 1)
        assert isinstance(deleted, Deleted)


class TestHistory:
    async def test_it_ends_with_the_newest_state(self, store: ManifestStore) -> None:
        created = await create(store, text="1")
        changed = await store.apply(manifest(text="2"), manager=OURS, uid=uid(created))
        assert (await store.history("shop"))[-1] == changed
