"""Simple watchers call their functions; snapshots show an object at one revision."""

import pytest

from natsctl import Kind, UsageError, kv
from natsctl.model.store import Stored
from natsctl.testing import MemoryStore
from natsctl.watchers import SimpleWatcher, Snapshot
from tests.support.controllers.recording_watcher import (
    SITES,
    RecordingWatcher,
    Site,
    SiteSpec,
    site,
)


def snapshot(value: bytes, kind: Kind[object] = SITES) -> Snapshot[object]:  # type: ignore[assignment]
    return Snapshot(kind, Stored("berlin", 7, value), MemoryStore(kind))


async def test_each_action_calls_its_function() -> None:
    recording = RecordingWatcher()
    watcher = SimpleWatcher(
        add_func=recording.add, update_func=recording.update, delete_func=recording.delete
    )
    created, updated = snapshot(site("one")), snapshot(site("two"))
    await watcher.add(created)
    await watcher.update(created, updated)
    await watcher.delete(updated)
    assert recording.calls == ["add berlin one", "update berlin one two", "delete berlin two"]


async def test_an_action_without_a_function_is_ignored() -> None:
    recording = RecordingWatcher()
    watcher = SimpleWatcher(update_func=recording.update)
    created = snapshot(site("one"))
    await watcher.add(created)
    await watcher.delete(created)
    await watcher.update(created, created)
    assert recording.calls == ["update berlin one one"]


def test_a_snapshot_shows_an_object_at_one_revision() -> None:
    taken = snapshot(site("one", labels={"region": "eu"}))
    assert (taken.key, taken.revision, taken.value) == (
        "berlin",
        7,
        site("one", labels={"region": "eu"}),
    )
    assert isinstance(taken.object, Site)
    assert taken.object.spec == SiteSpec("one")
    assert taken.metadata.labels == {"region": "eu"}
    assert not taken.is_going
    assert snapshot(site(deletionTimestamp="2026-01-01T00:00:00Z")).is_going


def test_an_object_without_metadata_is_never_marked_deleted() -> None:
    plain: Kind[object] = kv(dict, bucket="plain")
    taken = snapshot(b'{"a": 1}', plain)
    assert taken.object == {"a": 1}
    assert not taken.is_going
    with pytest.raises(UsageError, match="a subclass of"):
        assert taken.metadata
