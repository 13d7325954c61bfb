"""Objects are rewritten in the newest form, and no change of another client is lost."""

import asyncio
import random

import msgspec
import pytest

from natsctl.core.compare_and_set import rewrite
from natsctl.core.migration import (
    Migrated,
    MigrationStep,
    migrate,
    objects_of,
    outdated,
    planned,
)
from natsctl.errors import WatchBrokenError
from natsctl.model import documents
from natsctl.model.objects import STORED_VERSION
from natsctl.model.store import Stored
from natsctl.testing import MemoryStore, MemoryStores
from tests.support.controllers.shop_versions import SHOPS, old


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStores().store(SHOPS)


async def run(store: MemoryStore) -> dict[str, MigrationStep]:
    older = outdated(store, await objects_of(store))
    return {step.key: step async for step in migrate(store, older)}


async def test_an_object_is_stored_in_the_newest_form_and_keeps_the_rest(
    store: MemoryStore,
) -> None:
    metadata = {"uid": "u", "generation": 7, "finalizers": ["x/y"], "labels": {"a": "b"}}
    status = {"ready": True, "observedGeneration": 7}
    await store.create("a", old("nginx", metadata=metadata, status=status, theirs=[1]))
    assert (await run(store))["a"].result is Migrated.DONE
    assert documents.parse((await store.get("a")).value) == {
        "spec": {"images": ["nginx"]},
        "metadata": {**metadata, "annotations": {STORED_VERSION: "2"}},
        "status": status,
        "theirs": [1],
    }


async def test_a_second_run_writes_nothing(store: MemoryStore) -> None:
    await store.create("a", old("nginx"))
    await run(store)
    writes = store.writes
    assert await run(store) == {}
    assert store.writes == writes


async def test_a_dry_run_writes_nothing_and_reports_the_same(store: MemoryStore) -> None:
    await store.create("a", old("nginx"))
    await store.create("b", old("broken"))
    await store.create("c", b'{"metadata": {"annotations": {"%s": "9"}}}' % STORED_VERSION.encode())
    writes = store.writes
    steps = list(planned(store, await objects_of(store)))
    assert store.writes == writes
    assert steps == list((await run(store)).values())
    assert [step.result for step in steps] == [Migrated.DONE, Migrated.FAILED, Migrated.NEWER]
    assert "no such image" in steps[1].reason


async def test_an_object_that_was_deleted_is_not_created_again(store: MemoryStore) -> None:
    await store.create("a", old("nginx"))
    objects = await objects_of(store)
    await store.delete("a")
    (step,) = [step async for step in migrate(store, objects)]
    assert step.result is Migrated.GONE
    assert store.keys() == []


async def test_a_stopped_migration_is_continued_by_the_next_run(store: MemoryStore) -> None:
    for number in range(50):
        await store.create(f"k{number}", old("nginx"))
    first = migrate(store, await objects_of(store))
    for _ in range(20):
        await anext(first)
    await first.aclose()
    done = 50 - len(outdated(store, await objects_of(store)))
    assert 20 <= done < 50
    assert len(await run(store)) == 50 - done
    assert outdated(store, await objects_of(store)) == []


async def test_ten_thousand_edits_beside_a_migration_are_all_kept(store: MemoryStore) -> None:
    keys = [f"k{number}" for number in range(200)]
    for key in keys:
        await store.create(key, old("nginx", edits=0))
    chosen = random.Random(1)
    edits = dict.fromkeys(keys, 0)

    async def edit() -> None:
        for _ in range(1000):
            key = chosen.choice(keys)

            def change(current: Stored | None) -> bytes:
                assert current is not None
                document = documents.parse(current.value)
                return documents.render({**document, "edits": int(str(document["edits"])) + 1})

            await rewrite(store, key, change, seen=await store.get(key))
            edits[key] += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as editors:
        for _ in range(10):
            editors.create_task(edit())
        await asyncio.sleep(0)
        steps = await run(store)
    assert sum(edits.values()) == 10_000
    assert {step.result for step in steps.values()} <= {Migrated.DONE, Migrated.UNCHANGED}
    stored = {key: documents.parse((await store.get(key)).value) for key in keys}
    assert {key: document["edits"] for key, document in stored.items()} == edits
    assert all(document["spec"] == {"images": ["nginx"]} for document in stored.values())


async def test_a_listing_is_repeated_if_its_watch_breaks(store: MemoryStore) -> None:
    await store.create("a", old("nginx"))
    store.fail(WatchBrokenError("broken"))
    with pytest.raises(WatchBrokenError):
        await objects_of(store)
    store.fail(None)
    assert msgspec.json.decode((await objects_of(store))[0].value)["spec"] == {"image": "nginx"}
