"""Recorded events of resources and dynamic watchers are replayed in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from natsctl import (
    Controller,
    GroupVersionKind,
    InformerController,
    ObjectIdentifier,
    kube,
)
from natsctl.core.recording.document import Recording, decode_recording
from natsctl.core.recording.recordings import Recordings, recording
from natsctl.daemon.operator import Operator
from natsctl.errors import UsageError
from natsctl.model.documents import Document
from natsctl.testing import MemoryStores, VirtualTimeLoop
from natsctl.testing.kinds import MemoryResource
from natsctl.testing.memory import MemoryStore
from natsctl.testing.replaying.outcome import Verdict
from natsctl.testing.replaying.replay import replay, replay_recording
from tests.support.controllers.programs import (
    SIGNS,
    SITES,
    Program,
    Streamed,
    Watched,
    Watching,
)
from tests.support.eventually import eventually

STORED = Path(__file__).parent / "recordings"

Happens = Callable[[MemoryStore], Awaitable[object]]


def site(text: str, **fields: str) -> bytes:
    return msgspec.json.encode({"spec": {"text": text, **fields}})


def put(key: str, text: str, **fields: str) -> Happens:
    return lambda sites: sites.create(key, site(text, **fields))


def record_event(
    program: type[Program],
    key: str,
    *changes: Happens,
    masked: bool = True,
    prepare: Callable[[MemoryStores], Awaitable[None]] | None = None,
) -> Recording:
    """Return the recording of an event after these *changes*, made by a program that runs."""

    async def record() -> Recording:
        stores, recordings = MemoryStores(), Recordings(everything=True)
        if prepare is not None:
            await prepare(stores)
        running = [program()]
        operator = Operator(running, nats=stores, kube=stores.kube)  # type: ignore[arg-type]  # of subclasses
        with recording(recordings):
            task = asyncio.create_task(operator.run())
        await asyncio.sleep(1)
        for change in changes:
            await change(stores.store(SITES))
            await asyncio.sleep(1)
        history = operator.histories[program.name]

        def kept() -> bool:
            newest = recordings.newest(program.name, key)
            return newest is not None and newest.failed

        await eventually(kept)
        recorded = history.recording(key, masked=masked)
        operator.stop()
        await task
        assert recorded is not None
        return decode_recording(recorded.encoded())

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(record())


def corrected(program: type[Program]) -> type[Program]:
    return type("Corrected", (program,), {"bad": "worse", "__module__": __name__})


PROGRAMS = [(Streamed, "a"), (Watched, "home")]


@pytest.mark.parametrize(("program", "key"), PROGRAMS)
def test_a_failed_event_fails_as_recorded(program: type[Program], key: str) -> None:
    result = replay_recording(record_event(program, key, put("a", "bad")), program)
    assert (result.verdict, result.missing) == (Verdict.AS_RECORDED, ())
    assert str(result.replayed) == "ValueError: cannot show 'bad'"


@pytest.mark.parametrize(("program", "key"), PROGRAMS)
def test_a_corrected_program_gets_the_same_event_and_succeeds(
    program: type[Program], key: str
) -> None:
    result = replay_recording(record_event(program, key, put("a", "bad")), corrected(program))
    assert (result.verdict, result.writes) == (Verdict.SUCCEEDED, (f"create kv/signs {key}",))


def test_a_deletion_is_delivered_with_the_last_state() -> None:
    class Refusing(Streamed):
        bad = "hi"

        async def handle(self, event: Any) -> None:
            if event.kind == "delete":
                await super().handle(event)

    recorded = record_event(Refusing, "a", put("a", "hi"), lambda sites: sites.delete("a"))
    assert recorded.operation == "delete"
    result = replay_recording(recorded, corrected(Refusing))
    assert result.writes == ("delete kv/signs a",)


def test_the_end_of_the_list_is_delivered_with_the_objects_that_the_program_read() -> None:
    class Late(Streamed):
        async def run(self) -> None:
            await put("a", "bad")(await self.nats.open(SITES))  # type: ignore[arg-type]
            await super().run()

    recorded = record_event(Late, "natsctl.io/sync")
    assert replay_recording(recorded, Streamed).verdict is Verdict.AS_RECORDED
    assert replay_recording(recorded, corrected(Streamed)).verdict is Verdict.SUCCEEDED


def test_a_read_of_an_object_that_the_recorded_event_did_not_read_is_missing() -> None:
    class Curious(Streamed):
        async def handle(self, event: Any) -> None:
            (await self.resource.store()).get_by_key("other")

    result = replay_recording(record_event(Streamed, "a", put("a", "bad")), Curious)
    assert (result.verdict, result.missing) == (Verdict.NOT_RECORDED, ("Site.sites other",))


class Cached(Watched):
    """Reads the sites from the cache of its watches."""

    async def sites(self, watcher: ObjectIdentifier) -> list[Document]:
        return self.dynamic.list_watched_from_cache(watcher)


@pytest.mark.parametrize("program", [Watched, Cached])
def test_objects_that_a_reconciler_reads_are_in_the_recording(program: type[Watched]) -> None:
    changes = put("a", "hi"), put("b", "bad")
    result = replay_recording(record_event(program, "home", *changes), corrected(program))
    assert (result.verdict, result.missing) == (Verdict.SUCCEEDED, ())
    assert str(result.replayed) == "succeeded, next in 30 s"


def test_a_read_that_the_recorded_call_of_a_reconciler_did_not_make_is_missing() -> None:
    class Curious(Watched):
        async def sites(self, watcher: ObjectIdentifier) -> list[Document]:
            await (await self.nats.open(SIGNS)).get("other")
            return []

    result = replay_recording(record_event(Watched, "home", put("a", "bad")), Curious)
    assert (result.verdict, result.missing) == (Verdict.NOT_RECORDED, ("kv/signs other",))


@pytest.mark.parametrize(("program", "key"), PROGRAMS)
def test_secrets_are_masked_in_the_recording_of_an_event(program: type[Program], key: str) -> None:
    change = put("a", "bad", password="hunter2-of-a")
    assert b"hunter2" not in record_event(program, key, change).encoded()
    assert b"hunter2" in record_event(program, key, change, masked=False).encoded()


def test_an_event_of_the_second_stream_is_delivered_to_the_second_stream() -> None:
    class Twice(Streamed):
        async def run(self) -> None:
            async with asyncio.TaskGroup() as group, self.resource:
                for check in (str, self.check):
                    group.create_task(self.read(check))
                self.synced.set()
                await asyncio.Event().wait()

        async def read(self, check: Callable[[str], object]) -> None:
            async with self.resource.events() as events:
                async for event in events:
                    async with event:
                        check(event.object.spec.text if event.kind == "upsert" else "")

    recorded = record_event(Twice, "a", put("a", "bad"))
    assert recorded.part == "events 2 of Site.sites"
    assert replay_recording(recorded, Twice).verdict is Verdict.AS_RECORDED


class WatchedCluster(Watching):
    """Reads a Secret and all objects of a kind without namespaces, for the first site."""

    name = "cluster"
    secret = GroupVersionKind("", "v1", "Secret")
    zone = GroupVersionKind("example.com", "v1", "Zone")

    async def watch(self) -> None:
        watched = identifier(self.secret, "shop", "key"), identifier(self.zone, "", "north")
        await self.dynamic.add_or_update_watcher(self.watcher, *watched)

    async def reconcile(self, watcher: ObjectIdentifier) -> None:
        async with self.dynamic.query_batch(watcher):
            secret = await self.dynamic.get(watcher, self.secret, "shop", "key")
            zones = await self.dynamic.list(watcher, self.zone, "")
        self.check(f"{secret is not None} {len(zones)}")


def identifier(gvk: GroupVersionKind, namespace: str, name: str) -> ObjectIdentifier:
    return ObjectIdentifier(
        group=gvk.group, version=gvk.version, kind=gvk.kind, namespace=namespace, name=name
    )


class FailsForBoth(WatchedCluster):
    bad = "True 1"


async def fill(stores: MemoryStores) -> None:
    """Create a Secret, and an object of a kind that has no namespaces."""
    cluster = stores.kube
    cluster.kinds.define("example.com/v1", "Zone", MemoryResource("zones", namespaced=False))
    data = {"token": "aHVudGVyMi1vZi1hLXNob3A="}
    secret = msgspec.json.encode({"metadata": {}, "data": data})
    await cluster.store(kube("v1", "Secret")).create("shop/key", secret)
    zone = msgspec.json.encode({"metadata": {}, "spec": {}})
    await cluster.store(kube("example.com/v1", "Zone")).create("north", zone)


def test_objects_of_a_cluster_are_replayed_without_secrets() -> None:
    recorded = record_event(FailsForBoth, "home", prepare=fill)
    assert b"aHVudGVy" not in recorded.encoded()
    result = replay_recording(recorded, FailsForBoth)
    assert (result.verdict, result.missing) == (Verdict.AS_RECORDED, ())
    assert replay_recording(recorded, WatchedCluster).verdict is Verdict.SUCCEEDED


def test_a_program_that_never_takes_the_event_is_reported() -> None:
    class Idle(Streamed):
        async def run(self) -> None:
            await asyncio.Event().wait()

    message = "Idle did not take the recorded event within 86400 s; .* events of Site.sites"
    with pytest.raises(UsageError, match=message):
        replay_recording(record_event(Streamed, "a", put("a", "bad")), Idle)


def test_a_program_that_ends_at_its_start_is_reported() -> None:
    class Broken(Watched):
        async def run(self) -> None:
            raise RuntimeError("no configuration")

    with pytest.raises(UsageError, match=r"before its run\(\) ended: no configuration"):
        replay_recording(record_event(Watched, "home", put("a", "bad")), Broken)


@pytest.mark.parametrize("controller", [Controller, InformerController, dict])
@pytest.mark.parametrize(
    ("program", "around"), [(Streamed, "Resource"), (Watched, "DynamicWatcher")]
)
def test_a_recording_of_a_program_needs_its_class(
    controller: type[object], program: type[Program], around: str
) -> None:
    key = "a" if program is Streamed else "home"
    with pytest.raises(UsageError, match=f"is of a class around a {around}: give a class"):
        replay_recording(record_event(program, key, put("a", "bad")), controller)


@pytest.mark.parametrize(("file", "program"), [("resource", Streamed), ("dynamic", Watched)])
def test_a_stored_recording_of_a_program_is_replayed(file: str, program: type[Program]) -> None:
    path = STORED / f"version3-{file}.json"
    recorded = decode_recording(path.read_bytes())
    assert replay_recording(recorded, program).verdict is Verdict.AS_RECORDED
    key = "a" if program is Streamed else "home"
    assert replay(path, corrected(program)).writes == (f"create kv/signs {key}",)
