"""Resolution of an unknown creation by a person."""

import json
from datetime import UTC, datetime

import pytest

from natsctl.errors import NotFoundError, UsageError
from natsctl.managed import AnnotationNames
from natsctl.managed.creation.creation import Creation
from natsctl.managed.creation.resolution import domains_of, resolve, unlink, unresolved
from natsctl.testing import MemoryStore
from tests.support.controllers.disk_reconciler import DISKS

PENDING = "2026-01-01T00:00:00Z revision 7"


async def store_with(annotations: dict[str, str]) -> MemoryStore:
    store = MemoryStore(DISKS)
    value = {"spec": {"size": 1}, "metadata": {"annotations": annotations}}
    await store.create("a", json.dumps(value).encode())
    return store


async def annotations(store: MemoryStore) -> dict[str, str]:
    content: dict[str, str] = json.loads((await store.get("a")).value)["metadata"]["annotations"]
    return content


def test_an_intent_is_found_in_any_domain() -> None:
    pending = unresolved({"other": "1", "example.org/external-create-pending": PENDING})
    assert pending is not None
    names, mark = pending
    assert names == AnnotationNames("example.org")
    assert (mark.time, mark.intent) == (datetime(2026, 1, 1, tzinfo=UTC), 7)


def test_an_intent_with_its_result_is_resolved() -> None:
    stored = {f"natsctl.io/external-create-{word}": PENDING for word in ("pending", "failed")}
    assert unresolved(stored) is None
    assert unresolved({}) is None


def test_another_annotation_with_a_time_is_no_intent() -> None:
    assert unresolved({"example.org/created-at": PENDING}) is None


@pytest.mark.parametrize("created", [True, False])
async def test_resolve_keeps_other_annotations(
    created: bool,  # noqa: FBT001 - a test parameter
) -> None:
    store = await store_with({"natsctl.io/external-create-pending": PENDING, "mine": "1"})
    await resolve(store, "a", created=created, external_name="disk-9" if created else "")
    stored = await annotations(store)
    creation = Creation.of(stored, AnnotationNames())
    assert not creation.unknown
    assert (creation.succeeded is not None, creation.failed is not None) == (created, not created)
    assert stored.get("natsctl.io/external-name") == ("disk-9" if created else None)
    assert stored["mine"] == "1"


async def test_resolve_without_an_unknown_creation_is_refused() -> None:
    store = await store_with({"mine": "1"})
    with pytest.raises(UsageError, match="no creation with an unknown result"):
        await resolve(store, "a", created=True)
    assert store.writes == 1


async def test_resolve_of_a_missing_object_raises_not_found() -> None:
    with pytest.raises(NotFoundError):
        await resolve(MemoryStore(DISKS), "a", created=True)


class TestUnlink:
    async def test_unlink_removes_the_link_and_records_that_nothing_was_created(self) -> None:
        names = ("external-name", "external-create-pending", "external-create-succeeded")
        store = await store_with({"mine": "1", **{f"natsctl.io/{name}": "x" for name in names}})
        await unlink(store, "a")
        stored = await annotations(store)
        assert stored.keys() == {"mine", "natsctl.io/external-create-failed"}
        assert not Creation.of(stored, AnnotationNames()).unknown

    async def test_unlink_does_not_change_an_object_without_a_link(self) -> None:
        store = await store_with({"mine": "1", "other.io/size": "2"})
        await unlink(store, "a")
        assert await annotations(store) == {"mine": "1", "other.io/size": "2"}

    async def test_unlink_needs_no_object(self) -> None:
        store = MemoryStore(DISKS)
        await unlink(store, "a")
        assert store.writes == 0


def test_the_domains_of_links_are_sorted() -> None:
    stored = dict.fromkeys(
        ("b.io/external-name", "a.io/external-create-failed", "c.io/other", "external-name"), "1"
    )
    assert domains_of(stored) == ["a.io", "b.io"]
