"""The result of a creation stays pending until it is stored, and never replaces another one."""

import json
from typing import Any

import pytest

from natsctl import AnnotationNames, EventType
from natsctl.errors import NotFoundError, StoreError
from natsctl.managed import Managed
from natsctl.managed.creation.creation import OtherCreationError
from natsctl.managed.creation.links import CreationLink, annotations_of
from natsctl.managed.creation.results import Results
from natsctl.managed.reports import CANNOT_UPDATE, Reports
from natsctl.telemetry.logger import get_logger
from natsctl.testing import MemoryRecorder, MemoryStore
from tests.support.controllers.disk_reconciler import DISKS, clock

NAMES = AnnotationNames()
FIRST, SECOND = "2026-01-01T00:00:00Z revision 1", "2026-01-01T00:00:00Z revision 2"
RESULT = CreationLink("disk-1", FIRST, FIRST)


class Bench:
    """Disks whose links are in their annotations only."""

    def __init__(self) -> None:
        self.store = MemoryStore(DISKS)
        self.recorder = MemoryRecorder()
        reports = Reports(
            store=self.store, recorder=self.recorder, log=get_logger(__name__), names=NAMES
        )
        self.results = Results(
            objects=self.store, reports=reports, names=NAMES, links=None, updater=None
        )

    async def put(self, link: CreationLink) -> None:
        """Write the disk `a` with the annotations of the link."""
        value = {"spec": {"size": 1}, "metadata": {"annotations": link.annotations(NAMES)}}
        revision = (await self.store.get("a")).revision if self.store.keys() else None
        encoded = json.dumps(value).encode()
        if revision is None:
            await self.store.create("a", encoded)
        else:
            await self.store.update("a", encoded, revision=revision)

    async def created(self) -> Managed[Any]:
        """Return the disk with the result of its creation, which is not stored."""
        managed = Managed(DISKS, await self.store.get("a"), names=NAMES, clock=clock)
        managed.annotations |= RESULT.annotations(NAMES)
        managed.keep()
        return managed

    async def link(self) -> CreationLink:
        return CreationLink.of(annotations_of((await self.store.get("a")).value), NAMES)


@pytest.fixture
async def bench() -> Bench:
    bench = Bench()
    await bench.put(CreationLink(pending=FIRST))
    return bench


async def test_a_stored_result_is_not_pending(bench: Bench) -> None:
    await bench.results.store(await bench.created())
    assert (await bench.link(), bench.results.pending("a")) == (RESULT, None)


async def test_a_result_that_cannot_be_stored_is_stored_later(bench: Bench) -> None:
    managed = await bench.created()
    bench.store.fail(StoreError("away"))
    with pytest.raises(StoreError):
        await bench.results.store(managed)
    assert bench.results.pending("a") == (managed, False)
    bench.store.fail(None)
    await bench.results.catch_up("a")
    assert (await bench.link(), bench.results.pending("a")) == (RESULT, None)


async def test_a_result_never_replaces_that_of_another_creation(bench: Bench) -> None:
    managed = await bench.created()
    await bench.put(CreationLink(pending=SECOND))
    with pytest.raises(OtherCreationError):
        await bench.results.store(managed)
    await bench.results.catch_up("a")
    assert await bench.link() == CreationLink(pending=SECOND)
    [event] = bench.recorder.events
    assert (event.key, event.type, event.reason) == ("a", EventType.WARNING, CANNOT_UPDATE)
    assert bench.results.pending("a") is None


async def test_the_result_of_a_deleted_object_stays_pending(bench: Bench) -> None:
    last, managed = await bench.store.get("a"), await bench.created()
    await bench.store.delete("a")
    with pytest.raises(NotFoundError):
        await bench.results.store(managed)
    await bench.results.catch_up("a")
    assert bench.results.pending("a") == (managed, False)
    pending = bench.results.with_pending_result(last)
    assert CreationLink.of(annotations_of(pending.value), NAMES) == RESULT
    assert (pending.key, pending.revision) == (last.key, last.revision)


async def test_the_last_state_of_an_object_without_a_pending_result_is_unchanged(
    bench: Bench,
) -> None:
    last = await bench.store.get("a")
    assert bench.results.with_pending_result(last) is last


class TestACreationThatDidNotBegin:
    async def test_a_creation_whose_intent_was_not_stored_has_no_result(self, bench: Bench) -> None:
        managed = await bench.created()
        await bench.put(CreationLink())
        bench.results.withdraw(managed)
        assert bench.results.pending("a") == (managed, True)
        await bench.results.catch_up("a")
        assert (await bench.link(), bench.results.pending("a")) == (CreationLink(), None)
        assert bench.recorder.events == []

    async def test_a_creation_whose_object_is_gone_has_no_result(self, bench: Bench) -> None:
        managed = await bench.created()
        bench.results.withdraw(managed)
        await bench.store.delete("a")
        await bench.results.catch_up("a")
        assert bench.results.pending("a") is None

    async def test_a_creation_whose_intent_was_stored_has_a_result(self, bench: Bench) -> None:
        bench.results.withdraw(await bench.created())
        await bench.results.catch_up("a")
        assert (await bench.link(), bench.results.pending("a")) == (RESULT, None)

    @pytest.mark.parametrize("withdrawn", [True, False])
    async def test_a_creation_that_did_not_begin_can_be_replayed(
        self, bench: Bench, *, withdrawn: bool
    ) -> None:
        managed = await bench.created()
        bench.results.expect(managed, withdrawn=withdrawn)
        assert bench.results.pending("a") == (managed, withdrawn)

    async def test_a_creation_that_did_not_begin_may_begin_later(self, bench: Bench) -> None:
        managed = await bench.created()
        bench.results.withdraw(managed)
        bench.results.forget("a")
        bench.results.expect(managed, withdrawn=False)
        assert bench.results.pending("a") == (managed, False)
