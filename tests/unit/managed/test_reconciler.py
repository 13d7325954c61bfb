"""One reconciliation at a time: what is called, what is stored, and when to come back."""

import asyncio
import gc
import json
import logging
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from natsctl import Object, UsageError, kube, kv
from natsctl.errors import (
    ConflictError,
    RetryAfter,
    StoreError,
    StoreTimeoutError,
    TooLargeError,
)
from natsctl.managed import (
    AnnotationNames,
    Condition,
    ExternalClientFns,
    ExternalConnectDisconnecterFns,
    Managed,
    ManagedReconciler,
    Observation,
)
from natsctl.managed.names import FINALIZER_NAME
from natsctl.model.recorder import EventType
from natsctl.model.store import Stored
from natsctl.testing.cluster import MemoryCluster, MemoryManifestStore
from natsctl.testing.memory import MemoryStore
from natsctl.testing.recorder import MemoryRecorder
from tests.support.controllers.disk_reconciler import (
    DISKS,
    FAILED,
    HELD,
    NAMES,
    SYNCED,
    Cloud,
    CloudClient,
    Disk,
    Play,
    clock,
    primary_of,
)


@pytest.fixture
def play() -> Play:
    return Play()


class TestCreating:
    async def test_what_does_not_exist_is_created_and_then_observed(self, play: Play) -> None:
        await play.put(size=3)
        assert await play.reconcile() == 60
        assert play.cloud.calls == ["connect", "observe", "create", "observe"]
        assert play.cloud.disks == {"disk-1": 3}

    async def test_from_put_to_ready_it_takes_three_revisions(self, play: Play) -> None:
        await play.put()
        await play.settle()
        assert await play.conditions() == {"Ready": ("True", "Available"), "Synced": SYNCED}
        assert (await play.store.get("a")).revision == 3

    async def test_one_that_appears_later_takes_three_revisions_too(self, play: Play) -> None:
        play.cloud.appears_after_s = 20
        await play.put()
        await play.settle()
        assert await play.conditions() == {"Ready": ("True", "Available"), "Synced": SYNCED}
        assert (await play.store.get("a")).revision == 3

    async def test_the_name_that_the_system_gave_is_stored(self, play: Play) -> None:
        await play.put()
        await play.reconcile()
        assert (await play.annotations())["external-name"] == "disk-1"

    async def test_other_changes_that_a_creation_makes_are_dropped(self, play: Play) -> None:
        await play.put()
        await play.reconcile()
        assert "lost" not in (await play.document())["status"]

    async def test_its_conditions_are_creating_and_then_available(self, play: Play) -> None:
        seen: list[dict[str, tuple[str, str]]] = []

        class Looking(CloudClient):
            async def create(self, managed: Managed[Any]) -> None:
                seen.append(await play.conditions())
                await super().create(managed)

        play.connect_with(Looking)
        await play.put()
        await play.reconcile()
        assert seen == [{"Ready": ("False", "Creating")}]
        assert await play.conditions() == {"Ready": ("True", "Available"), "Synced": SYNCED}

    async def test_the_status_that_an_observation_sets_is_stored(self, play: Play) -> None:
        await play.put(size=3)
        await play.edit("a", lambda document: document.update(metadata={"generation": 4}))
        await play.settle()
        status = (await play.document())["status"]
        assert (status["size"], status["observedGeneration"]) == (3, 4)

    async def test_what_is_up_to_date_causes_no_write(self, play: Play) -> None:
        await play.put()
        await play.settle()
        assert isinstance(play.store, MemoryStore)
        writes = play.store.writes
        await asyncio.sleep(60)
        assert await play.reconcile() == 60
        assert play.store.writes == writes

    async def test_intent_and_finalizer_are_stored_before_it_is_called(self, play: Play) -> None:
        seen: list[tuple[list[str], set[str]]] = []

        async def create(_managed: Managed[Disk]) -> None:
            seen.append((await play.finalizers(), set(await play.annotations())))

        play = Play(client=lambda _: ExternalClientFns(create_fn=create))
        await play.put()
        await play.reconcile()
        assert seen == [(HELD, {"external-create-pending"})]

    async def test_an_object_that_was_written_meanwhile_is_not_created_for(self) -> None:
        async def observe(managed: Managed[Disk]) -> Observation:
            await play.put(managed.key, size=2)  # type: ignore[attr-defined]
            return Observation()

        async def create(_managed: Managed[Disk]) -> None:
            raise AssertionError("the state that was read is no more")

        fns = ExternalClientFns[Disk](observe_fn=observe, create_fn=create)
        play = Play(client=lambda _: fns)
        await play.put()
        with pytest.raises(RetryAfter, match="has changed since it was read"):
            await play.reconcile()
        assert await play.annotations() == {}

    async def test_result_and_intent_name_the_revision_that_the_intent_was_written_upon(
        self, play: Play
    ) -> None:
        await play.put()
        revision = (await play.store.get("a")).revision
        await play.reconcile()
        said = await play.annotations()
        assert said["external-create-pending"].endswith(f"Z revision {revision}")
        assert said["external-create-succeeded"].endswith(f"Z revision {revision}")

    async def test_a_new_intent_takes_the_results_of_earlier_ones_away(self, play: Play) -> None:
        await play.put()
        await play.settle()
        play.cloud.disks.clear()
        await asyncio.sleep(60)
        play.cloud.failures["create"] = PermissionError("no more")
        with pytest.raises(PermissionError):
            await play.reconcile()
        said = await play.annotations()
        assert "external-create-succeeded" not in said
        assert said["external-create-failed"].endswith(said["external-create-pending"][-2:])


class TestGrace:
    async def test_what_was_created_may_be_unseen_for_a_while(self, play: Play) -> None:
        play.cloud.appears_after_s = 20
        await play.put()
        await play.settle()
        assert play.cloud.created == ["a"]
        assert await play.conditions() == {"Ready": ("True", "Available"), "Synced": SYNCED}

    async def test_it_is_looked_for_less_and_less_often(self, play: Play) -> None:
        play.cloud.appears_after_s = 20
        await play.put()
        await play.settle()
        assert play.cloud.calls.count("observe") < 10

    async def test_it_is_created_again_once_the_grace_is_over(self, play: Play) -> None:
        play.cloud.appears_after_s = 3600
        await play.put()
        await play.reconcile()
        await asyncio.sleep(29)
        await play.reconcile()
        assert play.cloud.created == ["a"]
        await asyncio.sleep(2)
        await play.reconcile()
        assert play.cloud.created == ["a", "a"]

    async def test_what_was_seen_once_is_not_waited_for_when_it_goes(self, play: Play) -> None:
        await play.put()
        await play.settle()
        play.cloud.disks.clear()
        await play.reconcile()
        assert play.cloud.created == ["a", "a"]
        assert asyncio.get_running_loop().time() < 1

    async def test_it_may_be_longer(self) -> None:
        play = Play(creation_grace_period_s=300.0)
        play.cloud.appears_after_s = 3600
        await play.put()
        await play.reconcile()
        await asyncio.sleep(200)
        await play.reconcile()
        assert play.cloud.created == ["a"]

    async def test_another_reconciler_keeps_to_it(self, play: Play) -> None:
        play.cloud.appears_after_s = 20
        await play.put()
        await play.reconcile()
        another = Play(store=play.store, records=play.records, cloud=play.cloud)
        await another.settle()
        assert play.cloud.created == ["a"]

    async def test_what_is_deleted_meanwhile_is_waited_for_too(self, play: Play) -> None:
        play.cloud.appears_after_s = 20
        await play.put()
        await play.reconcile()
        await play.primary.delete("a")
        await play.settle()
        assert play.cloud.disks == {}


class TestFailedCreations:
    async def test_a_failure_is_recorded_and_it_is_tried_again(self, play: Play) -> None:
        play.cloud.failures["create"] = PermissionError("not you")
        await play.put()
        with pytest.raises(PermissionError):
            await play.reconcile()
        assert "external-create-failed" in await play.annotations()
        assert await play.conditions() == {"Ready": ("False", "Creating"), "Synced": FAILED}
        assert await play.message() == "cannot create: PermissionError: not you"
        del play.cloud.failures["create"]
        await play.settle()
        assert play.cloud.created == ["a"]

    async def test_a_conflict_from_outside_is_a_failure_like_any_other(self, play: Play) -> None:
        play.cloud.failures["create"] = ConflictError("exists")
        await play.put()
        with pytest.raises(ConflictError, match="exists"):
            await play.reconcile()
        assert "external-create-failed" in await play.annotations()
        del play.cloud.failures["create"]
        await play.settle()
        assert play.cloud.created == ["a"]

    async def test_its_own_record_of_a_failure_is_no_reason_to_try_at_once(
        self, play: Play
    ) -> None:
        play.cloud.failures["create"] = PermissionError("not you")
        await play.put()
        started = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < started + 3600:
            with pytest.raises((PermissionError, RetryAfter)):
                await play.reconcile()
            await asyncio.sleep(1)
        assert 60 <= play.cloud.calls.count("create") <= 70

    async def test_it_is_tried_at_once_when_somebody_changed_the_object(self, play: Play) -> None:
        play.cloud.failures["create"] = PermissionError("not you")
        await play.put()
        with pytest.raises(PermissionError):
            await play.reconcile()
        await play.put(size=2)
        with pytest.raises(PermissionError):
            await play.reconcile()
        assert play.cloud.calls.count("create") == 2

    @pytest.mark.parametrize("error", [TimeoutError("hm"), StoreTimeoutError("hm")])
    async def test_a_time_out_says_nothing_of_what_came_of_it(
        self, play: Play, error: Exception
    ) -> None:
        play.cloud.failures["create"] = error
        await play.put()
        with pytest.raises(type(error)):
            await play.reconcile()
        assert set(await play.annotations()) == {"external-create-pending"}

    async def test_one_that_takes_too_long_is_cut_short_and_told(self, play: Play) -> None:
        play.cloud.takes_s["create"] = 100
        await play.put()
        with pytest.raises(TimeoutError, match="longer than 60 s"):
            await play.reconcile()
        assert asyncio.get_running_loop().time() == 60
        assert set(await play.annotations()) == {"external-create-pending"}
        assert (await play.conditions())["Synced"] == FAILED

    async def test_asking_to_come_back_later_says_that_nothing_was_created(
        self, play: Play
    ) -> None:
        play.cloud.failures["create"] = RetryAfter(7)
        await play.put()
        with pytest.raises(RetryAfter):
            await play.reconcile()
        assert "external-create-failed" in await play.annotations()
        assert play.reasons == []
        with pytest.raises(RetryAfter) as again:
            await play.reconcile()
        assert again.value.delay_s == pytest.approx(7)


class TestUnknownCreations:
    @pytest.fixture
    async def play(self) -> Play:
        """Return a play in which a disk was created and its result was lost."""
        play = Play()
        play.cloud.creates_and_fails = True
        await play.put()
        with pytest.raises(TimeoutError):
            await play.reconcile()
        play.cloud.creates_and_fails = False
        play.cloud.calls.clear()
        play.recorder.events.clear()
        return play

    async def test_nothing_more_is_done_and_a_person_is_told_what_to_do(self, play: Play) -> None:
        for _ in range(3):
            assert await play.reconcile() is None
        assert play.cloud.calls == []
        assert "natsctl external resolve a" in await play.message()
        assert play.reasons == ["CannotInitializeManagedResource"]

    async def test_it_is_not_let_go_either(self, play: Play) -> None:
        await play.primary.delete("a")
        assert await play.reconcile() is None
        assert (await play.finalizers()) == HELD

    async def test_an_orphan_to_be_is_let_go(self, play: Play) -> None:
        await play.annotate(deletion_policy="orphan")
        await play.primary.delete("a")
        assert await play.reconcile() is None
        assert isinstance(play.store, MemoryStore)
        assert play.store.keys() == []

    async def test_without_the_intent_it_is_observed_again(self, play: Play) -> None:
        await play.annotate(external_create_pending=None, external_name="disk-1")
        await play.settle()
        assert play.cloud.created == ["a"]
        assert (await play.conditions())["Ready"] == ("True", "Available")

    async def test_names_known_beforehand_settle_it(self) -> None:
        play = Play(by_key=True)
        play.cloud.creates_and_fails = True
        await play.put(size=4)
        with pytest.raises(TimeoutError):
            await play.reconcile()
        await play.settle()
        assert play.cloud.created == ["a"]
        assert play.cloud.disks == {"a": 4}
        assert "external-create-succeeded" in await play.annotations()

    async def test_names_known_beforehand_tell_that_nothing_was_created(self) -> None:
        play = Play(by_key=True)
        play.cloud.failures["create"] = TimeoutError("never sent")
        await play.put()
        with pytest.raises(TimeoutError):
            await play.reconcile()
        play.cloud.failures.clear()
        await play.reconcile()
        assert play.cloud.created == []
        await asyncio.sleep(31)
        await play.settle()
        assert play.cloud.created == ["a"]

    async def test_on_its_way_out_a_name_known_beforehand_is_enough_to_delete(self) -> None:
        play = Play(by_key=True)
        play.cloud.creates_and_fails = True
        await play.put()
        with pytest.raises(TimeoutError):
            await play.reconcile()
        await play.primary.delete("a")
        await play.settle()
        assert play.cloud.disks == {}
        assert isinstance(play.store, MemoryStore)
        assert play.store.keys() == []


class TestUpdating:
    async def test_what_differs_is_updated(self, play: Play) -> None:
        await play.put(size=1)
        await play.settle()
        await play.put(size=2)
        assert await play.reconcile() == 60
        assert play.cloud.disks == {"disk-1": 2}
        assert play.reasons[-1] == "UpdatedExternalResource"

    async def test_a_difference_is_logged_at_debug_level(
        self, play: Play, caplog: pytest.LogCaptureFixture
    ) -> None:
        await play.put(size=1)
        await play.settle()
        await play.put(size=2)
        with caplog.at_level(logging.DEBUG):
            await play.reconcile()
        found = [at.levelname for at in caplog.records if "size is 1, not 2" in at.getMessage()]
        assert found == ["DEBUG"]

    async def test_what_exists_already_is_held_before_it_is_updated(self, play: Play) -> None:
        play.cloud.disks["found"] = 1
        await play.put(size=2, external_name="found")
        await play.settle()
        assert await play.finalizers() == HELD
        assert play.cloud.disks == {"found": 2}
        assert play.cloud.created == []

    async def test_a_failure_is_told_and_passes(self, play: Play) -> None:
        await play.put(size=1)
        await play.settle()
        await play.put(size=2)
        play.cloud.failures["update"] = ValueError("too small")
        with pytest.raises(ValueError, match="too small"):
            await play.reconcile()
        assert await play.conditions() == {"Ready": ("True", "Available"), "Synced": FAILED}
        assert play.reasons[-1] == "CannotUpdateExternalResource"
        assert play.recorder.events[-1].type is EventType.WARNING


class TestLateInitialization:
    @staticmethod
    def _client(**found: Any) -> ExternalClientFns[Disk]:
        async def observe(managed: Managed[Disk]) -> Observation:
            late = "zone" not in managed.spec
            for name, value in found.items():
                managed.spec[name] = value
            managed.status["seen"] = True
            return Observation(exists=True, up_to_date=True, late_initialized=late)

        return ExternalClientFns(observe_fn=observe)

    async def test_what_was_unset_is_stored_and_the_status_the_next_time(self) -> None:
        play = Play(client=lambda _: self._client(zone="b"))
        await play.put(size=1)
        assert await play.reconcile() == pytest.approx(0.1)
        document = await play.document()
        assert document["spec"] == {"size": 1, "zone": "b"}
        assert document["metadata"]["generation"] == 1
        assert "status" not in document
        assert await play.reconcile() == 60
        assert (await play.document())["status"]["seen"] is True

    async def test_what_was_set_must_not_be_changed(self) -> None:
        play = Play(client=lambda _: self._client(size=5))
        await play.put(size=1)
        with pytest.raises(UsageError, match=r"spec\.size"):
            await play.reconcile()
        assert (await play.document())["spec"] == {"size": 1}
        assert "which was set" in await play.message()

    async def test_saying_so_without_a_change_is_no_late_initialization(self) -> None:
        play = Play(client=lambda _: self._client())
        await play.put(size=1)
        assert await play.reconcile() == 60

    async def test_without_saying_so_no_change_of_the_spec_is_stored(self) -> None:
        async def observe(managed: Managed[Disk]) -> Observation:
            managed.spec["zone"] = "b"
            return Observation(exists=True, up_to_date=True)

        play = Play(client=lambda _: ExternalClientFns(observe_fn=observe))
        await play.put(size=1)
        await play.reconcile()
        assert (await play.document())["spec"] == {"size": 1}


class TestDeleting:
    async def test_it_is_deleted_until_it_is_gone_and_then_let_go(self, play: Play) -> None:
        play.cloud.goes_after_s = 10
        await play.put()
        await play.settle()
        await play.primary.delete("a")
        assert await play.reconcile() is not None
        assert await play.conditions() == {"Ready": ("False", "Deleting"), "Synced": SYNCED}
        assert await play.finalizers() == HELD
        await asyncio.sleep(11)
        assert await play.reconcile() is None
        assert isinstance(play.store, MemoryStore)
        assert play.store.keys() == []

    async def test_what_takes_long_to_go_is_looked_at_less_and_less_often(self, play: Play) -> None:
        play.cloud.goes_after_s = 100
        await play.put()
        await play.settle()
        await play.primary.delete("a")
        waits = [await play.reconcile()]
        while waits[-1] is not None:
            await asyncio.sleep(waits[-1])
            waits.append(await play.reconcile())
        assert waits[:6] == pytest.approx([1, 1, 2, 4, 8, 16])
        assert max(wait for wait in waits if wait) <= 60

    async def test_nothing_is_deleted_while_finalizers_of_others_hold_the_object(
        self, play: Play
    ) -> None:
        await play.put()
        await play.settle()
        await play.edit("a", lambda document: document["metadata"]["finalizers"].append("other"))
        await play.primary.delete("a")
        assert await play.reconcile() == 60
        assert play.cloud.disks == {"disk-1": 1}
        assert await play.finalizers() == [*HELD, "other"]
        assert await play.conditions() == {"Ready": ("False", "Deleting"), "Synced": SYNCED}
        assert "waiting for the finalizers of others: other" in json.dumps(await play.document())
        await play.edit("a", lambda document: document["metadata"]["finalizers"].remove("other"))
        await play.settle()
        assert play.cloud.disks == {}

    async def test_waiting_for_finalizers_of_others_causes_one_write(self, play: Play) -> None:
        await play.put()
        await play.settle()
        await play.edit("a", lambda document: document["metadata"]["finalizers"].append("other"))
        await play.primary.delete("a")
        await play.reconcile()
        before = await play.store.get("a")
        await play.reconcile()
        assert await play.store.get("a") == before

    async def test_an_object_without_an_external_resource_waits_for_no_finalizer_of_others(
        self, play: Play
    ) -> None:
        await play.put()
        await play.settle()
        play.cloud.disks.clear()
        await play.edit("a", lambda document: document["metadata"]["finalizers"].append("other"))
        await play.primary.delete("a")
        assert await play.reconcile() is None
        assert await play.finalizers() == ["other"]

    async def test_a_failure_is_told_and_it_stays(self, play: Play) -> None:
        await play.put()
        await play.settle()
        await play.primary.delete("a")
        play.cloud.failures["delete"] = PermissionError("no")
        with pytest.raises(PermissionError):
            await play.reconcile()
        assert await play.conditions() == {"Ready": ("False", "Deleting"), "Synced": FAILED}
        assert await play.finalizers() == HELD

    async def test_an_orphan_is_let_go_without_a_look_at_it(self, play: Play) -> None:
        await play.put(deletion_policy="orphan")
        await play.settle()
        play.cloud.calls.clear()
        await play.primary.delete("a")
        assert await play.reconcile() is None
        assert play.cloud.calls == []
        assert play.cloud.disks == {"disk-1": 1}

    async def test_what_was_never_ours_is_not_deleted(self, play: Play) -> None:
        play.cloud.disks["found"] = 1
        await play.put(external_name="found")
        await play.edit("a", lambda document: document["metadata"].update(finalizers=["other"]))
        await play.primary.delete("a")
        assert await play.reconcile() is None
        assert play.cloud.disks == {"found": 1}

    async def test_one_that_was_removed_past_its_finalizer_is_cleaned_up(self, play: Play) -> None:
        await play.put()
        await play.settle()
        await play.store.delete("a")
        await play.settle()
        assert play.cloud.disks == {}
        assert await play.store.history("a") != []
        calls = len(play.cloud.calls)
        assert await play.reconcile() is None
        assert len(play.cloud.calls) == calls

    async def test_an_orphan_that_was_removed_past_its_finalizer_stays(self, play: Play) -> None:
        await play.put(deletion_policy="orphan")
        await play.settle()
        await play.store.delete("a")
        await play.settle()
        assert play.cloud.disks == {"disk-1": 1}

    async def test_one_that_is_removed_while_it_is_created_is_cleaned_up(self) -> None:
        class Removing(CloudClient):
            async def create(self, managed: Managed[Any]) -> None:
                await super().create(managed)
                await play.store.delete(managed.key)  # type: ignore[attr-defined]

        play = Play(client=Removing)
        await play.put()
        await play.settle()
        await play.settle()
        assert play.cloud.created == ["a"]
        assert play.cloud.disks == {}

    async def test_one_that_was_never_there_is_nothing_to_do(self, play: Play) -> None:
        assert await play.reconcile("nobody") is None
        assert play.cloud.calls == []


class TestPause:
    async def test_a_paused_object_is_not_even_observed(self, play: Play) -> None:
        await play.put(paused="true")
        for _ in range(3):
            assert await play.reconcile() is None
        assert play.cloud.calls == []
        assert await play.conditions() == {"Synced": ("False", "ReconcilePaused")}
        assert play.reasons == ["ReconciliationPaused"]

    async def test_it_is_not_let_go_either(self, play: Play) -> None:
        await play.put()
        await play.settle()
        await play.annotate(paused="true")
        await play.primary.delete("a")
        await play.reconcile()
        assert await play.finalizers() == HELD
        assert play.cloud.disks == {"disk-1": 1}

    async def test_it_goes_on_when_the_pause_is_over(self, play: Play) -> None:
        await play.put(paused="true")
        await play.reconcile()
        await play.annotate(paused=None)
        await play.settle()
        assert (await play.conditions())["Synced"] == SYNCED

    async def test_only_the_word_true_pauses(self, play: Play) -> None:
        await play.put(paused="false")
        await play.settle()
        assert play.cloud.created == ["a"]


class TestPolicies:
    async def test_what_is_only_observed_is_neither_created_nor_updated(self, play: Play) -> None:
        await play.put(management_policy="observe")
        assert await play.reconcile() == 60
        assert play.cloud.created == []
        assert (await play.conditions())["Synced"] == FAILED
        play.cloud.disks["found"] = 7
        await play.annotate(external_name="found")
        assert await play.reconcile() == 60
        assert play.cloud.disks == {"found": 7}
        assert await play.conditions() == {"Ready": ("True", "Available"), "Synced": SYNCED}

    async def test_what_may_be_deleted_only_is_not_updated(self, play: Play) -> None:
        await play.put(management_policy="observe-delete", external_name="found")
        play.cloud.disks["found"] = 7
        await play.settle()
        assert play.cloud.disks == {"found": 7}
        await play.primary.delete("a")
        await play.settle()
        assert play.cloud.disks == {}

    async def test_what_may_not_be_deleted_stays(self, play: Play) -> None:
        await play.put(management_policy="observe-create-update")
        await play.settle()
        await play.primary.delete("a")
        await play.settle()
        assert play.cloud.disks == {"disk-1": 1}

    async def test_the_defaults_are_the_reconcilers(self) -> None:
        play = Play(management_policy="observe", deletion_policy="orphan")
        await play.put()
        await play.reconcile()
        assert play.cloud.created == []

    async def test_a_spec_may_say_it_as_in_kubernetes(self, play: Play) -> None:
        await play.put()
        await play.settle()
        await play.edit("a", lambda document: document["spec"].update(deletionPolicy="Orphan"))
        await play.primary.delete("a")
        await play.settle()
        assert play.cloud.disks == {"disk-1": 1}

    async def test_one_that_nobody_knows_stops_everything(self, play: Play) -> None:
        await play.put()
        await play.settle()
        calls = len(play.cloud.calls)
        await play.annotate(deletion_policy="orphn")
        await play.primary.delete("a")
        assert await play.reconcile() is None
        assert len(play.cloud.calls) == calls
        assert "'orphn'" in await play.message()
        assert await play.finalizers() == HELD


class TestOptions:
    async def test_an_external_system_of_nothing_is_the_default(self) -> None:
        store = MemoryStore(DISKS)
        await store.create("a", b'{"spec": {"size": 1}}')
        reconciler = ManagedReconciler(primary_of(store))
        assert await reconciler.reconcile("a") is not None

    async def test_the_interval_between_looks(self) -> None:
        play = Play(poll_interval_s=5.0)
        await play.put()
        await play.reconcile()
        assert await play.reconcile() == 5

    async def test_a_hook_says_the_interval_for_an_object(self) -> None:
        play = Play(poll_interval_hook=lambda managed, usual_s: usual_s * managed.spec["size"])
        await play.put(size=3)
        await play.reconcile()
        assert await play.reconcile() == 180

    async def test_a_jitter_varies_it_both_ways(self) -> None:
        play = Play(poll_jitter_s=10.0)
        await play.put()
        await play.reconcile()
        found = [await play.reconcile() or 0.0 for _ in range(200)]
        assert 50 <= min(found) < 57
        assert 63 < max(found) <= 70

    def test_a_hook_and_a_jitter_contradict_each_other(self) -> None:
        with pytest.raises(UsageError, match="poll_jitter_s"):
            Play(poll_jitter_s=1.0, poll_interval_hook=lambda _, usual_s: usual_s)

    async def test_another_finalizer(self) -> None:
        play = Play(finalizer="example.org/mine")
        await play.put()
        await play.reconcile()
        assert await play.finalizers() == ["example.org/mine"]

    async def test_annotations_of_another_domain(self) -> None:
        play = Play(names=AnnotationNames("example.org"))
        await play.put()
        await play.reconcile()
        said = (await play.document())["metadata"]["annotations"]
        assert {name.partition("/")[0] for name in said} == {"example.org"}

    async def test_a_logger(self, caplog: pytest.LogCaptureFixture) -> None:
        play = Play(logger=logging.getLogger("my.disks"))
        await play.put()
        with caplog.at_level(logging.INFO):
            await play.reconcile()
        assert "my.disks" in {record.name for record in caplog.records}

    async def test_a_function_that_updates_critical_annotations(self) -> None:
        asked: list[dict[str, str | None]] = []

        async def update(managed: Managed[Any]) -> None:
            asked.append(managed.changed_annotations)

        play = Play(critical_annotation_updater=update)
        await play.put()
        await play.reconcile()
        assert [set(at) for at in asked] == [{NAMES.external_name, NAMES.create_succeeded}]

    async def test_the_time_is_for_all_external_calls_of_one_reconciliation(self) -> None:
        play = Play(timeout_s=10.0)
        play.cloud.takes_s = {"connect": 4, "observe": 4, "create": 4}
        await play.put()
        with pytest.raises(TimeoutError, match="create was cut short"):
            await play.reconcile()
        assert asyncio.get_running_loop().time() == 10

    def test_a_kind_without_metadata_cannot_be_managed(self) -> None:
        with pytest.raises(UsageError, match=r"natsctl\.Object"):
            ManagedReconciler(primary_of(MemoryStore(kv(bytes, bucket="raw"))))

    def test_a_kind_watched_in_part_cannot_be_managed(self) -> None:
        kind = kube("example.org/v1", "Disk", metadata_only=True)
        store = MemoryCluster(MemoryRecorder()).store(kind)
        with pytest.raises(UsageError, match="in part"):
            ManagedReconciler(primary_of(store))


class TestConnecting:
    async def test_a_connecter_that_disconnects_does_after_every_reconciliation(self) -> None:
        cloud, done = Cloud(), []

        async def connect(_managed: Managed[Any]) -> CloudClient:
            done.append("connect")
            return CloudClient(cloud)

        async def disconnect() -> None:
            done.append("disconnect")

        fns = ExternalConnectDisconnecterFns(connect_fn=connect, disconnect_fn=disconnect)
        play = Play(cloud=cloud, connecter=fns)
        await play.put()
        await play.reconcile()
        cloud.failures["observe"] = ValueError("no")
        with pytest.raises(ValueError, match="no"):
            await play.reconcile()
        assert done == ["connect", "disconnect"] * 2

    async def test_a_disconnecter_that_fails_is_told_of_and_changes_nothing(self) -> None:
        cloud = Cloud()

        async def connect(_managed: Managed[Any]) -> CloudClient:
            return CloudClient(cloud)

        async def disconnect() -> None:
            raise ValueError("stuck")

        fns = ExternalConnectDisconnecterFns(connect_fn=connect, disconnect_fn=disconnect)
        play = Play(cloud=cloud, connecter=fns)
        await play.put()
        await play.settle()
        assert cloud.created == ["a"]
        assert "CannotDisconnectFromProvider" in play.reasons

    async def test_a_disconnecter_that_hangs_is_cut_short(self) -> None:
        async def connect(_managed: Managed[Any]) -> CloudClient:
            return CloudClient(play.cloud)  # type: ignore[attr-defined]

        async def disconnect() -> None:
            await asyncio.sleep(3600)

        fns = ExternalConnectDisconnecterFns(connect_fn=connect, disconnect_fn=disconnect)
        play = Play(connecter=fns)
        await play.put()
        await play.reconcile()
        assert asyncio.get_running_loop().time() == 10

    @pytest.mark.parametrize(
        ("call", "reason"),
        [
            ("connect", "CannotConnectToProvider"),
            ("observe", "CannotObserveExternalResource"),
        ],
    )
    async def test_a_failure_is_told_and_passes(self, play: Play, call: str, reason: str) -> None:
        await play.put()
        play.cloud.failures[call] = ValueError("no")
        with pytest.raises(ValueError, match="no"):
            await play.reconcile()
        assert play.reasons == [reason]
        assert await play.message() == f"cannot {call}: ValueError: no"
        assert play.cloud.created == []

    async def test_a_status_that_cannot_be_stored_hides_no_failure(self, play: Play) -> None:
        async def observe(_managed: Managed[Any]) -> Observation:
            assert isinstance(play.store, MemoryStore)
            play.store.fail(StoreError("away"))
            raise ValueError("the first")

        play = Play(client=lambda _: ExternalClientFns(observe_fn=observe))
        await play.put()
        with pytest.raises(ValueError, match="the first"):
            await play.reconcile()

    async def test_conditions_that_a_client_sets_stay(self) -> None:
        async def observe(managed: Managed[Any]) -> Observation:
            managed.set_conditions(Condition.unavailable("it is full"))
            return Observation(exists=True, up_to_date=True)

        play = Play(client=lambda _: ExternalClientFns(observe_fn=observe))
        await play.put()
        for _ in range(2):
            await play.reconcile()
            assert (await play.conditions())["Ready"] == ("False", "Unavailable")


class TestOutages:
    """The managed object's own store fails, at the worst moments."""

    @staticmethod
    def _cut_off_by_create(play: Play) -> None:
        class Cut(CloudClient):
            async def create(self, managed: Managed[Any]) -> None:
                await super().create(managed)
                play.fail(StoreError("away"))

        play.connect_with(Cut)

    async def test_a_result_is_stored_when_the_store_is_back_soon(self, play: Play) -> None:
        self._cut_off_by_create(play)
        await play.put()
        work = asyncio.create_task(play.reconcile())
        await asyncio.sleep(10)
        play.fail(None)
        await work
        assert (await play.annotations())["external-name"] == "disk-1"

    async def test_a_result_is_stored_later_while_the_process_lives(self, play: Play) -> None:
        self._cut_off_by_create(play)
        await play.put()
        with pytest.raises(StoreError, match="away"):
            await play.reconcile()
        await asyncio.sleep(3600)
        play.fail(None)
        play.connect_with(CloudClient)
        await play.settle()
        assert play.cloud.created == ["a"]
        assert (await play.annotations())["external-name"] == "disk-1"

    async def test_an_intent_whose_acknowledgement_was_lost_is_taken_back(self) -> None:
        store = _Deaf(DISKS)
        play = Play(store=store)
        await play.put()
        store.deaf = True
        with pytest.raises(StoreTimeoutError):
            await play.reconcile()
        store.deaf = False
        assert "external-create-pending" in await play.annotations()
        assert play.cloud.created == []
        await play.settle()
        assert play.cloud.created == ["a"]

    async def test_an_intent_that_an_outage_kept_from_being_stored_is_no_other_creation(
        self, play: Play
    ) -> None:
        async def observe(_managed: Managed[Disk]) -> Observation:
            play.fail(StoreError("away"))
            return Observation()

        play.connect_with(lambda _: ExternalClientFns(observe_fn=observe))
        await play.put()
        with pytest.raises(StoreError, match="away"):
            await play.reconcile()
        play.fail(None)
        await play.put(size=2)
        play.connect_with(CloudClient)
        play.recorder.events.clear()
        await play.settle()
        assert play.reasons == ["CreatedExternalResource"]
        assert play.cloud.disks == {"disk-1": 2}

    async def test_a_result_is_not_stored_over_another_creation(self, play: Play) -> None:
        self._cut_off_by_create(play)
        await play.put()
        with pytest.raises(StoreError, match="away"):
            await play.reconcile()
        play.fail(None)
        await play.annotate(external_create_pending="2031-01-01T00:00:00Z revision 99")
        await play.reconcile()
        assert "external-name" not in await play.annotations()


class _Refusing(MemoryStore):
    """A store that refuses the next writes that make *wrong* true of a document."""

    def __init__(self, wrong: Callable[[dict[str, Any]], bool]) -> None:
        super().__init__(DISKS)
        self._wrong = wrong

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        if self._wrong(json.loads(value)):
            raise TooLargeError("it is too large")
        return await super().update(key, value, revision=revision)


def _annotation(document: dict[str, Any], name: str) -> bool:
    return name in document.get("metadata", {}).get("annotations", {})


class TestUnstorable:
    """The managed object cannot be written, but its status can."""

    @staticmethod
    async def _failed(play: Play, what: str) -> None:
        with pytest.raises(TooLargeError):
            await play.reconcile()
        assert (await play.conditions())["Synced"] == FAILED
        assert await play.message() == f"cannot store {what}: TooLargeError: it is too large"
        assert play.reasons[-1] == "CannotUpdateManagedResource"

    async def test_an_intent(self) -> None:
        play = Play(store=_Refusing(lambda document: _annotation(document, NAMES.create_pending)))
        await play.put()
        await self._failed(play, "the intent to create")
        assert (await play.conditions())["Ready"] == ("False", "Creating")
        assert play.cloud.created == []

    async def test_a_finalizer(self) -> None:
        held = _Refusing(lambda document: bool(document.get("metadata", {}).get("finalizers")))
        play = Play(store=held)
        play.cloud.disks["found"] = 1
        await play.put(external_name="found", size=2)
        await self._failed(play, "the finalizer")
        assert play.cloud.disks == {"found": 1}

    async def test_the_removal_of_a_finalizer(self) -> None:
        def released(document: dict[str, Any]) -> bool:
            return document["metadata"].get("finalizers") == []

        play = Play(store=_Refusing(released))
        await play.put()
        await play.settle()
        await play.primary.delete("a")
        play.cloud.disks.clear()
        await self._failed(play, "the removal of the finalizer")

    async def test_late_initialization(self) -> None:
        async def observe(managed: Managed[Disk]) -> Observation:
            managed.spec["zone"] = "b"
            return Observation(exists=True, up_to_date=True, late_initialized=True)

        store = _Refusing(lambda document: "zone" in document["spec"])
        play = Play(store=store, client=lambda _: ExternalClientFns(observe_fn=observe))
        await play.put()
        await self._failed(play, "late initialization")

    async def test_the_result_of_a_creation(self, play: Play) -> None:
        class Cut(CloudClient):
            async def create(self, managed: Managed[Any]) -> None:
                await super().create(managed)
                assert isinstance(play.records, MemoryStore)
                play.records.fail(TooLargeError("it is too large"))

        play.connect_with(Cut)
        await play.put()
        await self._failed(play, "the result of the creation")
        assert (await play.conditions())["Ready"] == ("False", "Creating")

    async def test_the_error_of_a_creation_stands_if_its_result_cannot_be_stored_either(
        self, play: Play
    ) -> None:
        class Cut(CloudClient):
            async def create(self, _managed: Managed[Any]) -> None:
                assert isinstance(play.records, MemoryStore)
                play.records.fail(StoreError("away"))
                raise PermissionError("the first")

        play.connect_with(Cut)
        await play.put()
        with pytest.raises(PermissionError, match="the first"):
            await play.reconcile()
        assert await play.message() == "cannot create: PermissionError: the first"
        assert play.reasons == ["CannotUpdateManagedResource", "CannotCreateExternalResource"]

    async def test_the_error_of_a_creation_is_raised_while_no_store_answers(
        self, play: Play
    ) -> None:
        class Cut(CloudClient):
            async def create(self, _managed: Managed[Any]) -> None:
                play.fail(StoreError("away"))
                raise PermissionError("the first")

        play.connect_with(Cut)
        await play.put()
        with pytest.raises(PermissionError, match="the first"):
            await play.reconcile()
        play.fail(None)
        play.connect_with(CloudClient)
        await play.settle()
        assert play.cloud.created == ["a"]


class _Deaf(MemoryStore):
    """A store whose acknowledgements get lost."""

    deaf = False

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        stored = await super().update(key, value, revision=revision)
        if self.deaf:
            raise StoreTimeoutError("no answer")
        return stored


class TestClusters:
    """The managed object is a custom resource."""

    KIND = kube("example.org/v1", "Disk", namespace="shop")

    @pytest.fixture
    def play(self) -> Play:
        return Play(store=MemoryCluster(MemoryRecorder()).store(self.KIND), kind=self.KIND)

    async def test_it_lives_and_goes_as_one_in_nats_does(self, play: Play) -> None:
        await play.put("shop/a", size=3)
        await play.settle("shop/a")
        assert play.cloud.disks == {"disk-1": 3}
        assert await play.finalizers("shop/a") == HELD
        assert await play.conditions("shop/a") == {
            "Ready": ("True", "Available"),
            "Synced": SYNCED,
        }
        status = (await play.document("shop/a"))["status"]
        assert (status["size"], status["observedGeneration"]) == (3, 1)
        await play.store.delete("shop/a")
        await play.settle("shop/a")
        assert play.cloud.disks == {}
        with pytest.raises(StoreError):
            await play.store.get("shop/a")

    async def test_what_is_up_to_date_causes_no_write(self, play: Play) -> None:
        await play.put("shop/a")
        await play.settle("shop/a")
        before = await play.store.get("shop/a")
        await play.reconcile("shop/a")
        assert await play.store.get("shop/a") == before

    async def test_a_person_is_told_which_annotations_to_change(self, play: Play) -> None:
        play.cloud.creates_and_fails = True
        await play.put("shop/a")
        with pytest.raises(TimeoutError):
            await play.reconcile("shop/a")
        await play.reconcile("shop/a")
        assert f"remove the {NAMES.create_pending} annotation" in await play.message("shop/a")


class _Around:
    """A store in a cluster, with something changed."""

    def __init__(self, inner: MemoryManifestStore) -> None:
        self.kind = inner.kind
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Counting(_Around):
    """A kind without a status subresource: each of its statuses makes another generation."""

    async def patch_status(self, key: str, patch: Any, *, revision: int | None = None) -> Stored:
        await self.inner.patch_status(key, patch, revision=revision)
        document: dict[str, Any] = self.inner.document(key)
        document["metadata"]["generation"] += 1
        return await self.inner.get(key)


class _Busy(_Around):
    """A store in which somebody else writes before each of our statuses."""

    async def patch_status(self, key: str, patch: Any, *, revision: int | None = None) -> Stored:
        await self.inner.patch_status(key, {"theirs": patch.get("size", 0)})
        return await self.inner.patch_status(key, patch, revision=revision)


class TestStatusesInClusters:
    @staticmethod
    def _play(of: type[_Around]) -> tuple[Play, MemoryManifestStore]:
        inner = MemoryCluster(MemoryRecorder()).store(TestClusters.KIND)
        store: Any = of(inner)
        return Play(store=store, kind=TestClusters.KIND), inner

    async def test_where_a_status_makes_a_generation_no_generation_is_told_of(self) -> None:
        play, store = self._play(_Counting)
        await play.put("shop/a")
        await play.settle("shop/a")
        await play.settle("shop/a")
        writes = store.writes
        for _ in range(5):
            await play.reconcile("shop/a")
        assert store.writes == writes

    async def test_a_status_is_stored_whoever_writes_meanwhile(self) -> None:
        play, store = self._play(_Busy)
        await play.put("shop/a", size=3)
        await play.settle("shop/a")
        status: Any = store.document("shop/a")["status"]
        assert status["size"] == 3
        assert "theirs" in status


def test_names_in_objects_are_those_of_natsctl() -> None:
    assert (FINALIZER_NAME, NAMES.external_name) == (
        "natsctl.io/managed",
        "natsctl.io/external-name",
    )


class Typed(Object, frozen=True):
    spec: dict[str, int] = msgspec.field(default_factory=dict)


async def test_an_object_is_typed_for_its_client() -> None:
    found: list[Typed] = []

    async def observe(managed: Managed[Typed]) -> Observation:
        found.append(managed.object)
        return Observation(exists=True, up_to_date=True)

    async def connect(_managed: Managed[Typed]) -> ExternalClientFns[Typed]:
        return ExternalClientFns(observe_fn=observe)

    store = MemoryStore(kv(Typed, bucket="typed"))
    await store.create("a", b'{"spec": {"x": 1}}')
    await ManagedReconciler(primary_of(store), connecter=connect, clock=clock).reconcile("a")
    assert found[0].spec == {"x": 1}


class Name(str):
    """A key of which a test sees whether anything still refers to it."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("grace_s", [0.0, 3600.0])
async def test_nothing_is_kept_of_a_key_whose_object_is_gone(grace_s: float) -> None:
    play = Play(creation_grace_period_s=grace_s)

    async def reconciled() -> weakref.ref[Name]:
        key = Name("b")
        await play.put("b")
        await play.settle(key)
        await play.primary.delete("b")
        await play.settle(key)
        await play.settle(key)
        return weakref.ref(key)

    known = await reconciled()
    assert isinstance(play.store, MemoryStore)
    assert play.store.keys() == []
    gc.collect()
    assert known() is None


async def test_nothing_is_kept_of_a_creation_whose_grace_period_is_over() -> None:
    play = Play(creation_grace_period_s=3600.0)

    async def reconciled() -> weakref.ref[Name]:
        key = Name("b")
        await play.put("b")
        await play.settle(key)
        await asyncio.sleep(3601)
        await play.settle("b")
        return weakref.ref(key)

    known = await reconciled()
    gc.collect()
    assert known() is None
