"""What a slot of a controller writes and reads, within a sync and beside other clients."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from natsctl import (
    ConflictError,
    Controller,
    ExistsError,
    InvalidObjectError,
    NotFoundError,
    Operation,
    UsageError,
    kv,
    primary,
    secondary,
    tertiary,
)
from natsctl.testing import Harness, MemoryStore, running
from tests.support.controllers.app_controller import (
    APPS,
    PARTS,
    App,
    AppSpec,
    Part,
    PartSpec,
    SlowStores,
    document,
)
from tests.support.stores.documents import put

OWNER = {"natsctl.io/owner-kind": "App.apps", "natsctl.io/owner-key": "shop"}
OTHER = {**OWNER, "natsctl.io/owner-key": "bar"}
Doc = dict[str, Any]


class Slots(Controller):
    """A controller whose next sync does what a test says."""

    apps = primary(APPS, indexes={"part": lambda app: app.spec.parts})
    parts = secondary(PARTS)
    seen = tertiary(PARTS)
    resync_s = 1e9

    def __init__(self) -> None:
        self.todo: Callable[[], Awaitable[object]] | None = None
        self.result: object = None

    async def sync_handler(self, key: str) -> float | None:
        todo, self.todo = self.todo, None
        if todo is not None and key == "shop":
            try:
                self.result = await todo()
            except Exception as error:  # noqa: BLE001 - the test raises it
                self.result = error
        return None


class Bench:
    """Runs code within a sync of the key shop, and writes as other clients do."""

    def __init__(self, harness: Harness, slots: Slots) -> None:
        self.harness, self.slots = harness, slots
        assert isinstance(harness.stores, SlowStores)
        self.apps = harness.stores.store(APPS)
        self.parts = harness.stores.store(PARTS)

    async def sync(self, todo: Callable[[], Awaitable[object]]) -> Any:
        """Return what *todo* returns in a sync, or raise its error."""
        self.slots.todo = todo
        self.harness.runtime.enqueue_key("shop", Operation.MANUAL)
        await self.harness.run_until_idle()
        if isinstance(self.slots.result, Exception):
            raise self.slots.result
        return self.slots.result

    async def put(self, store: MemoryStore, key: str, value: bytes | Doc) -> None:
        await put(store, key, value)
        await self.harness.run_until_idle()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    slots = Slots()
    async with running(slots, stores=SlowStores()) as harness:
        yield Bench(harness, slots)


def app(text: str = "hi", *parts: str) -> App:
    return App(spec=AppSpec(text, parts))


def part(text: str = "hi") -> Part:
    return Part(spec=PartSpec(text))


PLAIN: Doc = {"spec": {"text": "1", "parts": ["a"]}}
RICH: Doc = {
    "metadata": {"uid": "u", "x": 1, "generation": 2, "finalizers": ["theirs", "ours"]},
    "spec": {"text": "1", "parts": [], "y": 2},
    "status": {"a": 1, "b": {"c": 1, "d": 2}},
    "data": 4,
}


@pytest.mark.parametrize(
    ("before", "do", "changed"),
    [
        pytest.param(
            RICH,
            lambda apps: apps.put("shop", app("2")),
            {
                "metadata": {**RICH["metadata"], "generation": 3},
                "spec": {**RICH["spec"], "text": "2"},
            },
            id="put keeps fields that the type does not know",
        ),
        pytest.param(RICH, lambda apps: apps.put("shop", app("1")), {}, id="put of the same"),
        pytest.param(
            RICH,
            lambda apps: apps.update_status("shop", {"a": None, "b": {"c": 3}}),
            {"status": {"b": {"c": 3, "d": 2}, "observedGeneration": 2}},
            id="a status is merged",
        ),
        pytest.param(
            RICH,
            lambda apps: apps.update_status("shop", {"a": 1, "observedGeneration": 1}),
            {"status": {**RICH["status"], "observedGeneration": 1}},
            id="an observed generation may be given",
        ),
        pytest.param(
            RICH,
            lambda apps: apps.add_finalizer("shop", "more"),
            {"metadata": {**RICH["metadata"], "finalizers": ["theirs", "ours", "more"]}},
            id="a finalizer is added",
        ),
        pytest.param(
            RICH, lambda apps: apps.add_finalizer("shop", "ours"), {}, id="a finalizer it has"
        ),
        pytest.param(
            RICH,
            lambda apps: apps.remove_finalizer("shop", "ours"),
            {"metadata": {**RICH["metadata"], "finalizers": ["theirs"]}},
            id="a finalizer is removed",
        ),
        pytest.param(
            RICH, lambda apps: apps.remove_finalizer("shop", "no"), {}, id="a finalizer it lacks"
        ),
        pytest.param(PLAIN, lambda apps: apps.delete("shop"), None, id="delete"),
    ],
)
async def test_a_write_changes_only_what_it_names(
    bench: Bench, before: Doc, do: Callable[[Any], Awaitable[object]], changed: Doc | None
) -> None:
    await bench.put(bench.apps, "shop", before)
    writes = bench.apps.writes
    await bench.sync(lambda: do(bench.slots.apps))
    if changed is None:
        assert bench.apps.keys() == []
    else:
        assert await document(bench.apps, "shop") == {**before, **changed}
    assert bench.apps.writes - writes == (changed != {})


@pytest.mark.parametrize(
    ("do", "error"),
    [
        (lambda apps: apps.create("shop", app()), ConflictError),
        (lambda apps: apps.update("shop", app("2"), revision=1000), ConflictError),
        (lambda apps: apps.update("none", app(), revision=1), NotFoundError),
        (lambda apps: apps.delete("none"), NotFoundError),
        (lambda apps: apps.update_status("none", {}), NotFoundError),
        (lambda apps: apps.add_finalizer("none", "x"), NotFoundError),
        (lambda apps: apps.read("broken"), InvalidObjectError),
    ],
)
async def test_a_refused_call_raises_its_error_and_writes_nothing(
    bench: Bench, do: Callable[[Any], Awaitable[object]], error: type[Exception]
) -> None:
    await bench.put(bench.apps, "shop", PLAIN)
    await bench.put(bench.apps, "broken", b"no JSON")
    writes = bench.apps.writes
    with pytest.raises(error):
        await bench.sync(lambda: do(bench.slots.apps))
    assert bench.apps.writes == writes


async def test_an_object_with_finalizers_is_marked_and_read_as_marked(bench: Bench) -> None:
    await bench.put(bench.apps, "shop", RICH)

    async def delete() -> object:
        await bench.slots.apps.delete("shop")
        found = bench.slots.apps.get("shop")
        return found and found.metadata.deletion_timestamp

    assert await bench.sync(delete)
    assert (await document(bench.apps, "shop"))["metadata"]["deletionTimestamp"]


async def test_a_sync_finds_its_own_writes_before_the_watch_shows_them(bench: Bench) -> None:
    await bench.put(bench.apps, "shop", {"spec": {"text": "1", "parts": ["old"]}})
    apps, parts = bench.slots.apps, bench.slots.parts
    bench.apps.lag_s = bench.parts.lag_s = 5.0

    async def write() -> object:
        await apps.put("shop", app("2", "new"))
        await apps.put("more", app("3", "new"))
        found = [sorted(apps.by_index("part", name)) for name in ("old", "new")]
        await apps.delete("more")
        await apps.update_status("shop", {"ready": True})
        shop = apps.get("shop")
        assert shop is not None
        assert (shop.spec.text, shop.status["ready"]) == ("2", True)
        assert [list(apps.keys()), sorted(apps.by_index("part", "new"))] == [["shop"], ["shop"]]
        assert (apps.get("more"), await apps.read("more")) == (None, None)
        await parts.apply("gone", part())
        await parts.apply("kept", part())
        await parts.delete("gone")
        assert [*parts.keys()] == [*parts.items()] == [*parts.owned()] == ["kept"]
        assert (parts.get("gone"), parts.get("kept")) == (None, parts.owned()["kept"])
        return found

    assert await bench.sync(write) == [[], ["more", "shop"]]


async def test_a_write_keeps_what_others_wrote_since_the_watch(bench: Bench) -> None:
    await bench.put(bench.apps, "shop", PLAIN)

    async def write() -> None:
        await put(bench.apps, "shop", {**PLAIN, "data": 5})
        await bench.slots.apps.put("shop", app("2"))
        await put(bench.apps, "shop", {**await document(bench.apps, "shop"), "data": 6})
        await bench.slots.apps.update_status("shop", {"ready": True})

    await bench.sync(write)
    content = await document(bench.apps, "shop")
    assert (content["data"], content["spec"]["text"], content["status"]["ready"]) == (6, "2", True)


async def test_a_status_observes_the_generation_that_the_sync_read(bench: Bench) -> None:
    await bench.put(bench.apps, "shop", RICH)

    async def write() -> None:
        bench.slots.apps.get("shop")
        newer = {**RICH["metadata"], "generation": 3}
        await put(bench.apps, "shop", {**RICH, "metadata": newer, "spec": {"text": "new"}})
        await asyncio.sleep(1)
        await bench.slots.apps.update_status("shop", {"ready": True})

    await bench.sync(write)
    assert (await document(bench.apps, "shop"))["status"]["observedGeneration"] == 2


@pytest.mark.parametrize(
    ("labels", "do", "message"),
    [
        ({}, lambda parts: parts.apply("x", part()), "owned by nobody; adopt=True takes it over"),
        (OTHER, lambda parts: parts.apply("x", part()), r"owned by App\.apps bar"),
        ({}, lambda parts: parts.create("x", part()), 'Resource "x" already exists'),
        (OTHER, lambda parts: parts.delete("x"), r"owned by App\.apps bar"),
        ({}, lambda parts: parts.delete("x"), "already exists"),
    ],
)
@pytest.mark.parametrize("known", [True, False])
async def test_an_object_of_others_stays_as_it_is(
    bench: Bench,
    labels: dict[str, str],
    do: Callable[[Any], Awaitable[object]],
    message: str,
    *,
    known: bool,
) -> None:
    theirs = {"metadata": {"labels": labels, "annotations": labels}, "spec": {"text": "theirs"}}

    async def write() -> None:
        await put(bench.parts, "x", theirs)
        if known:
            await asyncio.sleep(1)
        await do(bench.slots.parts)

    with pytest.raises(ExistsError, match=message):
        await bench.sync(write)
    assert await document(bench.parts, "x") == theirs


async def test_an_own_object_is_applied_and_deleted_whatever_the_cache_shows(bench: Bench) -> None:
    parts = bench.slots.parts

    async def write() -> object:
        await parts.apply("x", part("1"))
        await parts.apply("gone", part("1"))
        await bench.parts.delete("gone")
        await parts.apply("gone", part("2"))
        await asyncio.sleep(1)
        changed = {**await document(bench.parts, "x"), "data": 1}
        await put(bench.parts, "x", changed)
        await parts.apply("x", part("2"))
        await parts.create("y", part("1"))
        with suppress(ConflictError):
            await parts.create("y", part("2"))
        await parts.delete("y")
        await parts.delete("none")
        return sorted(parts.owned()), sorted(bench.slots.seen.keys())

    assert await bench.sync(write) == (["gone", "x"], ["gone", "x"])
    for key in ("x", "gone"):
        assert (await document(bench.parts, key))["spec"] == {"text": "2"}
    assert (await document(bench.parts, "x"))["data"] == 1
    assert sorted(bench.slots.parts.owned("shop")) == ["gone", "x"]
    assert bench.slots.parts.owned("bar") == {}
    for call in (parts.apply("z", part()), parts.create("z", part()), parts.delete("x")):
        with pytest.raises(UsageError, match="only within a sync handler"):
            await call
    with pytest.raises(UsageError):
        parts.owned()


async def test_the_last_state_of_a_deleted_object_is_its_last_valid_one(bench: Bench) -> None:
    apps = bench.slots.apps
    await bench.put(bench.apps, "x", {"spec": {"text": "1", "parts": []}})
    await bench.put(bench.apps, "x", b"no JSON")
    await apps.forget("x")
    assert bench.apps.keys() == ["x"]
    await bench.apps.delete("x")
    assert await apps.last("x") == app("1")
    await bench.harness.run_until_idle()
    await apps.forget("x")
    assert await apps.last("x") is None
    assert await apps.last("never") is None


def test_a_secondary_of_a_kind_without_labels_is_refused() -> None:
    with pytest.raises(UsageError, match="no labels, finalizers or status"):
        secondary(kv(dict[str, Any], bucket="plain"))
