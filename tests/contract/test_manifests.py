"""Contract tests of manifest stores: server-side apply, field managers and status patches."""

import uuid
from typing import Any

import msgspec
import pytest

from natsctl.errors import (
    ConflictError,
    FieldConflictError,
    ImmutableFieldError,
    NotFoundError,
)
from natsctl.model.store import Applied, Deleted, ManifestStore, Stored
from tests.support.stores.backends import ManifestBackend, listing, take
from tests.support.stores.documents import Document, metadata_of, parse

OURS, FORMER, THEIRS = "natsctl/apps", "natsctl/old", "people"
OTHER_UID = "00000000-0000-4000-8000-000000000000"


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
    value = metadata_of(parse(stored.value))["uid"]
    assert isinstance(value, str)
    return value


def spec(stored: Stored) -> object:
    return parse(stored.value)["spec"]


@pytest.fixture
async def store(manifests: ManifestBackend) -> ManifestStore:
    return await manifests.stores.open(manifests.kind())


async def create(store: ManifestStore, name: str = "shop", **spec: Any) -> Stored:
    """Create an object by apply."""
    return await store.apply(manifest(name, **spec), manager=OURS, uid="")


async def test_the_key_of_a_manifest_is_its_namespace_if_any_and_its_name(
    manifests: ManifestBackend, store: ManifestStore
) -> None:
    assert await store.locate(manifest("shop")) == "shop"
    namespaced = await manifests.stores.open(manifests.namespaced_kind())
    located: Document = {"metadata": {"namespace": "team-a", "name": "shop"}}
    assert await namespaced.locate(located) == "team-a/shop"


class TestApplyCreates:
    async def test_the_created_object_is_a_complete_document_of_its_kind(
        self, store: ManifestStore
    ) -> None:
        document = parse((await create(store)).value)
        assert (document["apiVersion"], document["kind"]) == ("contract.test/v1", "Note")
        metadata = metadata_of(document)
        assert metadata["name"] == "shop"
        assert metadata["uid"]
        assert "managedFields" not in metadata
        assert str(metadata["creationTimestamp"]) > "2020"

    async def test_apply_does_not_adopt_an_existing_object(self, store: ManifestStore) -> None:
        """Not even one of the same manager, and not if it's forced."""
        theirs = await store.apply(manifest(text="1"), manager=THEIRS, uid="")
        ours = await create(store, "ours", text="1")
        for name, existing in (("shop", theirs), ("ours", ours)):
            with pytest.raises(ConflictError) as raised:
                await create(store, name, text="1", more=True)
            assert not isinstance(raised.value, FieldConflictError)
            with pytest.raises(ConflictError):
                await store.apply(manifest(name, text="2"), manager=OURS, uid="", force=True)
            assert await store.get(name) == existing

    async def test_apply_creates_a_deleted_object_with_another_uid(
        self, store: ManifestStore
    ) -> None:
        first = await create(store)
        await store.delete("shop")
        second = await create(store)
        assert second.revision > first.revision
        assert uid(second) != uid(first)


class TestRepeatedApply:
    async def test_a_changed_manifest_changes_its_fields_and_keeps_those_of_others(
        self, store: ManifestStore
    ) -> None:
        created = await create(store, text="1", more=True)
        unchanged = await store.apply(manifest(text="1", more=True), manager=OURS, uid=uid(created))
        assert unchanged == created
        await store.apply(manifest(theirs=True), manager=THEIRS, uid=uid(created))
        changed = await store.apply(manifest(text="2"), manager=OURS, uid=uid(created))
        assert changed.revision > created.revision
        assert uid(changed) == uid(created)
        assert spec(changed) == {"text": "2", "theirs": True}
        assert await store.get("shop") == changed

    async def test_apply_does_not_change_an_object_of_another_uid(
        self, store: ManifestStore
    ) -> None:
        created = await create(store)
        with pytest.raises(ConflictError):
            await store.apply(manifest(text="2"), manager=OURS, uid=OTHER_UID)
        assert await store.get("shop") == created

    async def test_apply_with_a_uid_does_not_create_a_deleted_object(
        self, store: ManifestStore
    ) -> None:
        created = await create(store)
        await store.delete("shop")
        with pytest.raises(ConflictError):
            await store.apply(manifest(), manager=OURS, uid=uid(created))
        with pytest.raises(NotFoundError):
            await store.get("shop")


class TestFieldConflicts:
    async def test_the_error_names_the_other_manager_and_every_field(
        self, store: ManifestStore
    ) -> None:
        ours = manifest(labels={"a.b/c": "1"}, text="1")
        created = await store.apply(ours, manager=OURS, uid="")
        theirs = manifest(labels={"a.b/c": "2"}, text="2")
        with pytest.raises(FieldConflictError, match=r"natsctl/apps.*spec\.text") as raised:
            await store.apply(theirs, manager=THEIRS, uid=uid(created))
        assert raised.value.managers == (OURS,)
        assert set(raised.value.fields) == {".metadata.labels.a.b/c", ".spec.text"}
        assert await store.get("shop") == created

    async def test_an_update_owns_the_fields_that_it_changed(self, store: ManifestStore) -> None:
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


class TestSharedFields:
    async def test_a_shared_field_stays_if_one_of_its_managers_drops_it(
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
        former = manifest(text="1", dropped=True)
        created = await store.apply(former, manager=FORMER, uid="")
        changed = await store.apply(manifest(text="2"), manager=OURS, uid=uid(created), force=True)
        assert spec(changed) == {"text": "2"}
        assert await store.get("shop") == changed
        managed = await store.managed("shop")
        assert [manager.name for manager in managed.managers] == [OURS]

    async def test_fields_of_a_former_manager_beside_our_own_are_removed(
        self, store: ManifestStore
    ) -> None:
        created = await create(store, text="1")
        theirs = {"theirs": True}
        await store.apply(manifest(**theirs), manager=THEIRS, uid=uid(created))  # type: ignore[arg-type]
        await store.apply(manifest(text="1", more=True), manager=FORMER, uid=uid(created))
        changed = await store.apply(manifest(text="1"), manager=OURS, uid=uid(created))
        assert spec(changed) == {"text": "1", **theirs}


class TestManagers:
    async def test_applied_fields_belong_to_their_manager(self, store: ManifestStore) -> None:
        """So does a field that another manager has taken by force."""
        created = await create(store, text="1", more="1")
        managed = await store.managed("shop")
        assert managed.revision == created.revision
        [ours] = managed.managers
        assert (ours.name, ours.applied) == (OURS, True)
        assert ours.fields == {"f:spec": {"f:text": {}, "f:more": {}}}
        await store.apply(manifest(text="2"), manager=THEIRS, uid=uid(created), force=True)
        managers = (await store.managed("shop")).managers
        assert {manager.name: manager.fields for manager in managers if manager.applied} == {
            OURS: {"f:spec": {"f:more": {}}},
            THEIRS: {"f:spec": {"f:text": {}}},
        }

    async def test_a_value_that_replaced_a_former_map_stays(self, store: ManifestStore) -> None:
        created = await create(store, place={"town": "Rome"}, text="1")
        theirs = manifest(place="here")
        await store.apply(theirs, manager=THEIRS, uid=uid(created), force=True)
        applied = await store.apply(manifest(text="1"), manager=OURS, uid=uid(created))
        assert spec(applied) == {"place": "here", "text": "1"}


class TestImmutableFields:
    async def test_a_change_of_an_immutable_field_names_it_and_is_refused(
        self, manifests: ManifestBackend
    ) -> None:
        store = await manifests.stores.open(manifests.namespaced_kind())
        type_fields = {"apiVersion": "v1", "kind": "ConfigMap", "immutable": True}
        metadata = {"namespace": "default", "name": f"fixed-{uuid.uuid4().hex[:8]}"}
        config: Document = {**type_fields, "metadata": metadata, "data": {"a": "1"}}
        created = await store.apply(config, manager=OURS, uid="")
        changed = {**config, "data": {"a": "2"}}
        with pytest.raises(ImmutableFieldError) as raised:
            await store.apply(changed, manager=OURS, uid=uid(created), force=True)
        assert raised.value.fields == ("data",)
        assert await store.get(created.key) == created


class TestPatchStatus:
    async def test_a_patch_is_merged_into_the_status(self, store: ManifestStore) -> None:
        """The spec stays, and a patch of a stale revision is refused."""
        created = await create(store, text="1")
        first = await store.patch_status("shop", {"ready": True, "at": {"a": 1, "b": 2}})
        assert first.revision > created.revision
        patched = await store.patch_status("shop", {"at": {"a": None, "c": 3}})
        assert parse(patched.value)["status"] == {"ready": True, "at": {"b": 2, "c": 3}}
        assert spec(patched) == {"text": "1"}
        with pytest.raises(ConflictError):
            await store.patch_status("shop", {"n": 2}, revision=first.revision)
        assert await store.get("shop") == patched

    async def test_update_and_apply_do_not_change_the_status(self, store: ManifestStore) -> None:
        created = await create(store)
        patched = await store.patch_status("shop", {"ready": True})
        updated = {**parse(patched.value), "spec": {"text": "2"}, "status": {"ready": False}}
        value = msgspec.json.encode(updated)
        replaced = await store.update("shop", value, revision=patched.revision)
        assert parse(replaced.value)["status"] == {"ready": True}
        applied = {**manifest(text="2"), "status": {"ready": False}}
        changed = await store.apply(applied, manager=OURS, uid=uid(created), force=True)
        assert parse(changed.value)["status"] == {"ready": True}


class TestDeleteByUid:
    async def test_an_object_of_another_uid_is_not_deleted(self, store: ManifestStore) -> None:
        created = await create(store)
        with pytest.raises(ConflictError):
            await store.delete("shop", revision=created.revision, uid=OTHER_UID)
        assert await store.get("shop") == created


class TestFinalizers:
    async def test_a_delete_marks_an_object_that_has_finalizers(self, store: ManifestStore) -> None:
        with_finalizer = manifest()
        metadata_of(with_finalizer)["finalizers"] = ["contract.test/held"]
        created = await store.apply(with_finalizer, manager=OURS, uid="")
        async with store.watch() as events:
            await listing(events)
            marked_at = await store.delete("shop", revision=created.revision)
            [marked] = await take(events, 1)
            assert isinstance(marked, Applied)
            assert metadata_of(parse(marked.stored.value))["deletionTimestamp"]
            assert created.revision <= marked_at < marked.stored.revision
            second_delete = await store.delete("shop", revision=marked.stored.revision)
            assert second_delete < marked.stored.revision
            await store.apply(manifest(), manager=OURS, uid=uid(created))
            deleted = (await take(events, 1))[0]
            if isinstance(deleted, Applied):  # a store may send the last state again
                [deleted] = await take(events, 1)
        assert isinstance(deleted, Deleted)
