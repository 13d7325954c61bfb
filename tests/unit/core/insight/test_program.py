"""The history of a program: its events, its failures before a restart, and its recordings."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from natsctl import NotFoundError, Resource, keep_recordings, retry_up_to
from natsctl.core.insight.program import ProgramHistory
from natsctl.core.recording.document import StoreStep, decode_recording
from natsctl.core.recording.recordings import Recordings, recording
from natsctl.daemon.operator import Operator
from natsctl.testing import MemoryStores, replay
from tests.support.controllers.programs import SIGNS, SITES, Program, Streamed, Watched

BAD = b'{"spec": {"text": "bad"}}'
GOOD = b'{"spec": {"text": "hi"}}'


@asynccontextmanager
async def running(
    program: type[Program], stores: MemoryStores, recordings: Recordings | None = None
) -> AsyncIterator[ProgramHistory]:
    """Run a program, and yield its history after a second."""
    operator = Operator([program()], nats=stores)  # type: ignore[list-item]  # of subclasses
    with recording(recordings):
        task = asyncio.create_task(operator.run())
    await asyncio.sleep(1)
    try:
        yield operator.histories[program.name]
    finally:
        operator.stop()
        await task


@pytest.mark.parametrize(("program", "key"), [(Streamed, "a"), (Watched, "home")])
async def test_a_program_explains_its_last_events(program: type[Program], key: str) -> None:
    stores = MemoryStores()
    await stores.store(SITES).create("a", GOOD)
    async with running(program, stores, Recordings()) as history:
        explanation = history.explain(key)
        (sync,) = explanation.syncs
        assert (sync.error, sync.created) == ("", 1)
        assert explanation.failures == 0
        assert history.status().failing == {}


@pytest.mark.parametrize(("program", "key"), [(Streamed, "a"), (Watched, "home")])
async def test_a_program_reports_its_failing_keys(program: type[Program], key: str) -> None:
    stores = MemoryStores()
    await stores.store(SITES).create("a", BAD)
    async with running(program, stores) as history:
        assert history.status().failing[key] == "ValueError: cannot show 'bad'"
        explanation = history.explain(key)
        assert explanation.failures == 8
        assert explanation.queued is not None
        assert explanation.queued.place == "waiting"
        await stores.store(SITES).update("a", GOOD, revision=1)
        await asyncio.sleep(10)
        assert (history.status().failing, history.explain(key).failures) == ({}, 0)


async def test_an_object_of_a_resource_exists_in_the_explanation() -> None:
    stores = MemoryStores()
    await stores.store(SITES).create("a", GOOD)
    async with running(Streamed, stores) as history:
        explanation = history.explain("a")
        assert (explanation.exists, explanation.revision) == (True, 1)
        assert not history.explain("b").exists


@pytest.mark.parametrize(("program", "key"), [(Streamed, "a"), (Watched, "home")])
async def test_a_failing_key_continues_its_backoff_after_a_restart(
    program: type[Program], key: str
) -> None:
    stores = MemoryStores()
    await stores.store(SITES).create("a", BAD)
    async with running(program, stores) as history:
        assert history.explain(key).failures == 8
    async with running(program, stores) as history:
        assert history.explain(key).failures == 9


class GivesUp(Streamed):
    """Ends after three failures of a key."""

    async def run(self) -> None:
        async with self.resource, self.resource.events(error_handler=retry_up_to(3)) as events:
            async for event in events:
                async with event:
                    self.synced.set()
                    if event.kind == "upsert":
                        self.check(event.object.spec.text)
            await asyncio.Event().wait()


async def test_a_stream_that_has_given_up_begins_without_failures_after_a_restart() -> None:
    stores = MemoryStores()
    await stores.store(SITES).create("a", BAD)
    for _ in range(2):
        async with running(GivesUp, stores) as history:
            assert history.explain("a").failures == 4


async def handle_one(history: ProgramHistory, stores: MemoryStores) -> None:
    """Handle the first event of a resource: create a sign, and fail."""
    nats = history.noted(stores)
    async with Resource(SITES, nats) as resource, resource.events() as events:
        event = await anext(events)
        async with event:
            signs = await nats.open(SIGNS)
            await signs.create(event.key, b"a sign")
            raise ValueError(event.object.spec.text)


async def recording_of_its_own() -> bytes:
    stores = MemoryStores()
    await stores.store(SITES).create("a", BAD)
    with keep_recordings("own") as history:
        await handle_one(history, stores)
        return history.written("a")


async def test_a_program_of_its_own_writes_its_recordings() -> None:
    (step,) = decode_recording(await recording_of_its_own()).steps
    assert isinstance(step, StoreStep)
    assert (step.verb, step.place, step.key) == ("create", "kv/signs", "a")


def test_a_recording_of_a_program_of_its_own_is_replayed_with_a_class(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(asyncio.run(recording_of_its_own()))
    corrected: type[Streamed] = type("Corrected", (Streamed,), {"bad": "worse"})
    assert replay(path, corrected).writes == ("create kv/signs a",)


def test_a_program_without_a_failed_event_has_no_recording() -> None:
    with (
        keep_recordings("own") as history,
        pytest.raises(NotFoundError, match="own has no recording of a"),
    ):
        history.written("a")


async def test_two_resources_of_a_kind_have_different_names() -> None:
    stores = MemoryStores()
    await stores.store(SITES).create("a", BAD)
    with keep_recordings("own", everything=True) as history:
        first, second = Resource(SITES, stores), Resource(SITES, stores)
        async with first, second, first.events() as first_events, second.events() as second_events:
            for events in (first_events, second_events):
                async with await anext(events):
                    pass
            assert sorted(history.informers) == ["Site.sites", "Site.sites 2"]
