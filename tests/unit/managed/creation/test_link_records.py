"""The record of a link is never overwritten by a process that has not seen it."""

import json
from typing import Any

import pytest

from natsctl import KRATEO, AnnotationNames, Kind, kv
from natsctl.managed.creation.creation import OtherCreationError
from natsctl.managed.creation.links import (
    RECORDS,
    CreationLink,
    Links,
    Standing,
    annotations_of,
    object_of,
    record_key,
    standing,
)
from natsctl.model.store import Stored
from natsctl.testing import MemoryStore
from tests.support.controllers.disk_reconciler import Disk

DISKS = kv(Disk, bucket="disks", history=10)
NAMES = AnnotationNames()
RECORD = record_key("disks", "a", NAMES)
FIRST, SECOND = "2026-01-01T00:00:00Z revision 1", "2026-01-01T00:00:00Z revision 2"
BEGUN = CreationLink(pending=FIRST)
LINKED = CreationLink("disk-1", FIRST, FIRST)


class Bench:
    """Two processes that read and write the records of disks."""

    def __init__(self) -> None:
        self.disks, self.records = MemoryStore(DISKS), MemoryStore(RECORDS)
        self.mine, self.theirs = (
            Links(objects=self.disks, kind=DISKS, names=NAMES, open_records=self.open)
            for _ in range(2)
        )

    async def open(self, _kind: Kind[Any]) -> MemoryStore:
        return self.records

    async def recorded(self) -> CreationLink:
        return RECORDS.decode((await self.records.get(RECORD)).value)

    async def put(self, link: CreationLink) -> None:
        """Write the disk `a` with the annotations of the link."""
        metadata = {"annotations": link.annotations(NAMES)}
        value = json.dumps({"spec": {"size": 1}, "metadata": metadata}).encode()
        if self.disks.keys():
            revision = (await self.disks.get("a")).revision
            await self.disks.update("a", value, revision=revision)
        else:
            await self.disks.create("a", value)


@pytest.fixture
def bench() -> Bench:
    return Bench()


class TestWrites:
    async def test_another_creation_is_not_overwritten(self, bench: Bench) -> None:
        await bench.mine.read("a")
        await bench.theirs.write("a", CreationLink(pending=SECOND))
        with pytest.raises(OtherCreationError, match="another creation was begun for a"):
            await bench.mine.write("a", BEGUN)
        assert await bench.recorded() == CreationLink(pending=SECOND)

    async def test_the_result_of_the_same_creation_is_written(self, bench: Bench) -> None:
        await bench.mine.write("a", BEGUN)
        await bench.theirs.write("a", CreationLink("disk-1", FIRST))
        await bench.mine.write("a", LINKED)
        assert await bench.recorded() == LINKED
        await bench.mine.write("a", BEGUN)
        assert await bench.recorded() == BEGUN

    async def test_a_link_that_another_process_has_written_is_not_written_again(
        self, bench: Bench
    ) -> None:
        await bench.mine.write("a", BEGUN)
        await bench.theirs.write("a", LINKED)
        writes = bench.records.writes
        await bench.mine.write("a", LINKED)
        assert bench.records.writes == writes

    async def test_a_record_that_was_removed_is_no_creation_of_this_process(
        self, bench: Bench
    ) -> None:
        await bench.mine.write("a", BEGUN)
        await bench.theirs.forget("a")
        with pytest.raises(OtherCreationError):
            await bench.mine.write("a", LINKED)

    async def test_a_removed_record_without_a_creation_is_written_again(self, bench: Bench) -> None:
        await bench.mine.write("a", CreationLink("found"))
        await bench.theirs.forget("a")
        await bench.mine.write("a", CreationLink("another"))
        assert await bench.recorded() == CreationLink("another")


class TestForgottenRecords:
    async def test_a_forgotten_record_leaves_no_trace(self, bench: Bench) -> None:
        await bench.mine.write("a", LINKED)
        await bench.mine.forget("a")
        states = await bench.records.history(RECORD)
        assert [state for state in states if isinstance(state, Stored)] == []
        assert bench.mine.last_seen("a") == (None, CreationLink())

    async def test_a_record_that_does_not_exist_can_be_forgotten(self, bench: Bench) -> None:
        await bench.mine.forget("a")
        assert bench.records.keys() == []


class TestObjectsWithoutARecord:
    async def test_an_object_without_a_record_has_the_link_of_an_earlier_revision(
        self, bench: Bench
    ) -> None:
        for link in (BEGUN, LINKED, CreationLink()):
            await bench.put(link)
        assert await bench.mine.read("a") == LINKED

    async def test_an_object_without_a_record_has_no_link_of_an_object_deleted_before(
        self, bench: Bench
    ) -> None:
        await bench.put(LINKED)
        await bench.disks.delete("a")
        await bench.put(CreationLink())
        assert await bench.mine.read("a") == CreationLink()


class TestSeenRecords:
    async def test_a_seen_record_is_known_with_its_revision(self, bench: Bench) -> None:
        await bench.mine.write("a", LINKED)
        revision = (await bench.records.get(RECORD)).revision
        assert bench.mine.last_seen("a") == (revision, LINKED)

    async def test_a_seen_record_can_be_replayed(self, bench: Bench) -> None:
        await bench.theirs.write("a", LINKED)
        revision, link = bench.theirs.last_seen("a")
        assert revision is not None
        bench.mine.see("a", revision, link)
        await bench.mine.write("a", CreationLink("disk-2", FIRST, FIRST))
        assert (await bench.recorded()).external_name == "disk-2"

    async def test_a_record_that_is_read_for_a_recording_is_not_seen(self, bench: Bench) -> None:
        await bench.theirs.write("a", LINKED)
        await bench.mine.peek("a")
        assert bench.mine.last_seen("a") == (None, CreationLink())


@pytest.mark.parametrize(
    ("recorded", "held", "expected"),
    [
        (LINKED, None, Standing.LOST),
        (BEGUN, None, Standing.LOST),
        (CreationLink(), None, None),
        (LINKED, CreationLink("disk-2"), Standing.LOST),
        (BEGUN, CreationLink("disk-1", SECOND, SECOND), Standing.LOST),
        (LINKED, LINKED, Standing.LINKED),
        (LINKED, CreationLink(), Standing.LINKED),
        (LINKED, BEGUN, Standing.LINKED),
        (BEGUN, BEGUN, Standing.UNKNOWN),
        (BEGUN, CreationLink(), Standing.UNKNOWN),
        (BEGUN, LINKED, Standing.LINKED),
        (CreationLink("disk-1"), CreationLink("disk-1", FIRST), Standing.UNKNOWN),
        (CreationLink(), LINKED, None),
        (CreationLink(pending=FIRST, failed=FIRST), CreationLink(), None),
    ],
)
def test_the_standing_of_a_link(
    recorded: CreationLink, held: CreationLink | None, expected: str | None
) -> None:
    assert standing(recorded, held) == expected


def test_the_key_of_a_record_names_its_object() -> None:
    assert object_of(record_key("disks", "eu.a", KRATEO)) == (
        AnnotationNames(max(KRATEO.domains)),
        "disks",
        "eu.a",
    )


def test_only_texts_are_annotations_of_an_object() -> None:
    value = b'{"spec": {}, "metadata": {"annotations": {"a": "1", "b": 2}}}'
    assert annotations_of(value) == {"a": "1"}
    assert annotations_of(b"garbage") == {}
