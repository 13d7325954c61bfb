"""Records of external resources: an object that loses its annotations keeps its link."""

import json
from typing import Any

import pytest

from natsctl.errors import RetryAfter, StoreError, UsageError
from natsctl.managed import KRATEO, AnnotationNames
from natsctl.model.store import Stored
from natsctl.testing import MemoryStore
from tests.support.controllers.disk_reconciler import HELD, SYNCED, Play

KRATEO_FINALIZER = "finalizer.managedresource.krateo.io"


async def replace_object(play: Play, **spec: int) -> None:
    """Replace the whole object as `nats kv put` does, with other metadata only."""
    stored = await play.store.get("a")
    document = {"metadata": {"annotations": {"team": "disks"}}, "spec": spec}
    value = json.dumps(document).encode()
    await play.store.update("a", value, revision=stored.revision)


async def record(play: Play) -> dict[str, Any]:
    """Return the only record of a link."""
    assert isinstance(play.records, MemoryStore)
    (key,) = play.records.keys()
    assert key == "links.natsctl_io.disks.a"
    content: dict[str, Any] = json.loads((await play.records.get(key)).value)
    return content


class TestPlainPuts:
    async def test_an_object_without_a_record_is_linked_by_its_history(self) -> None:
        play = Play()
        await play.put(size=1)
        await play.settle()
        await replace_object(play, size=2)
        restarted = Play(store=play.store, cloud=play.cloud)
        await restarted.settle()
        assert (play.cloud.created, play.cloud.disks) == (["a"], {"disk-1": 2})
        assert {"team", "external-name"} <= set(await play.annotations())

    async def test_a_person_resolves_a_creation_with_an_unknown_result_once(self) -> None:
        play = Play()
        play.cloud.creates_and_fails = True
        await play.put(size=1)
        with pytest.raises(TimeoutError):
            await play.reconcile()
        await play.resolve(created=True, external_name="disk-1")
        await play.settle()
        assert (play.cloud.created, (await play.conditions())["Synced"]) == (["a"], SYNCED)
        with pytest.raises(UsageError, match="no creation with an unknown result"):
            await play.resolve(created=False)


class TestRecords:
    async def test_nothing_is_created_while_the_records_cannot_be_read(self) -> None:
        play = Play()
        assert isinstance(play.records, MemoryStore)
        play.records.fail(StoreError("away"))
        await play.put()
        with pytest.raises(StoreError, match="away"):
            await play.reconcile()
        assert play.cloud.calls == []

    async def test_a_record_that_another_process_wrote_meanwhile_stops_the_creation(self) -> None:
        intent = b'{"pending": "2026-01-01T00:00:00Z revision 1"}'

        class Overtaken(MemoryStore):
            async def create(self, key: str, value: bytes) -> Stored:
                await super().create(key, intent)
                return await super().create(key, value)

        play = Play(records=Overtaken(Play().records.kind))
        await play.put()
        with pytest.raises(RetryAfter, match="a has changed since it was read"):
            await play.reconcile()
        assert play.cloud.created == []
        assert await record(play) == json.loads(intent)


class TestOlderNames:
    def test_names_of_another_domain_are_not_read(self) -> None:
        stored = {f"{AnnotationNames().domain}/external-name": "disk-7"}
        assert KRATEO.link(stored)
        assert AnnotationNames("example.com").link(stored) == {}

    @staticmethod
    async def _krateo(play: Play, **annotations: str) -> None:
        """Store an object with the annotation names of krateo."""
        named = {f"krateo.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
        metadata = {"finalizers": [KRATEO_FINALIZER, "other"], "annotations": named}
        value = json.dumps({"spec": {"size": 2}, "metadata": metadata}).encode()
        await play.store.create("a", value)

    async def test_an_object_with_krateo_names_gets_natsctl_names(self) -> None:
        play = Play()
        play.cloud.disks["disk-7"] = 1
        await self._krateo(
            play,
            external_name="disk-7",
            external_create_pending="2026-01-01T00:00:00Z",
            external_create_succeeded="2026-01-01T00:00:01Z",
        )
        await play.settle()
        assert (play.cloud.disks, play.cloud.created) == ({"disk-7": 2}, [])
        metadata = (await play.document())["metadata"]
        assert metadata["annotations"] == {
            "natsctl.io/external-name": "disk-7",
            "natsctl.io/external-create-pending": "2026-01-01T00:00:00Z",
            "natsctl.io/external-create-succeeded": "2026-01-01T00:00:01Z",
        }
        assert metadata["finalizers"] == [*HELD, "other"]

    async def test_an_object_with_the_krateo_finalizer_is_cleaned_up_and_released(self) -> None:
        play = Play()
        play.cloud.disks["disk-7"] = 2
        await self._krateo(play, external_name="disk-7")
        await play.edit("a", lambda document: document["metadata"]["finalizers"].remove("other"))
        await play.primary.delete("a")
        await play.settle()
        assert isinstance(play.store, MemoryStore)
        assert (play.cloud.disks, play.store.keys()) == ({}, [])

    async def test_krateo_pause_and_policies_apply_and_keep_their_names(self) -> None:
        play = Play()
        await self._krateo(play, paused="true", deletion_policy="orphan")
        assert await play.reconcile() is None
        assert play.cloud.calls == []
        assert "krateo.io/paused" in (await play.document())["metadata"]["annotations"]

    async def test_krateo_names_are_an_option(self) -> None:
        play = Play(names=KRATEO)
        await play.put()
        await play.settle()
        metadata = (await play.document())["metadata"]
        assert metadata["finalizers"] == [KRATEO_FINALIZER]
        assert metadata["annotations"]["krateo.io/external-name"] == "disk-1"
