"""The managed reconciler: its external calls, its writes and its requeue delays."""

import asyncio
import gc
import json
import logging
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from natsctl import FINALIZER_NAME, EventType, Object, UsageError, kube, kv
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
from natsctl.model.store import Stored
from natsctl.testing import MemoryCluster, MemoryManifestStore, MemoryRecorder, MemoryStore
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


class TestCreate:
    async def test_a_new_object_is_ready_after_three_revisions(self, play: Play) -> None:
        await play.put()
        await play.settle()
        assert await play.conditions() == {"Ready": ("True", "Available"), "Synced": SYNCED}
        assert (await play.store.get("a")).revision == 3

    async def test_an_object_whose_resource_appears_late_is_ready_after_three_revisions(
        self, play: Play
    ) -> None:
        play.cloud.appears_after_s = 20
        await play.put()
        await play.settle()
        assert await play.conditions() == {"Ready": ("True", "Available"), "Synced": SYNCED}
        assert (await play.store.get("a")).revision == 3

    async def test_an_object_is_creating_until_its_new_resource_is_observed(
        self, play: Play
    ) -> None:
        play.cloud.appears_after_s = 20
        await play.put()
        assert await play.reconcile() == pytest.approx(0.1)
        assert (await play.conditions())["Ready"] == ("False", "Creating")

    async def test_a_new_resource_that_differs_is_updated_before_its_object_is_ready(
        self, play: Play
    ) -> None:
        class Smaller(CloudClient):
            async def create(self, managed: Managed[Any]) -> None:
                await super().create(managed)
                play.cloud.disks[managed.external_name] -= 1

        play.connect_with(Smaller)
        await play.put(size=3)
        assert await play.reconcile() == pytest.approx(0.1)
        assert (await play.conditions())["Ready"] == ("False", "Creating")
        await play.reconcile()
        assert play.cloud.disks == {"disk-1": 3}
        await play.reconcile()
        assert (await play.conditions())["Ready"] == ("True", "Available")

    async def test_the_external_name_set_by_create_is_stored(self, play: Play) -> None:
        await play.put()
        await play.reconcile()
        assert (await play.annotations())["external-name"] == "disk-1"

    @pytest.mark.parametrize("appears_after_s", [0, 20])
    async def test_other_annotations_set_by_create_are_stored(
        self, play: Play, appears_after_s: float
    ) -> None:
        class Labelled(CloudClient):
            async def create(self, managed: Managed[Any]) -> None:
                await super().create(managed)
                managed.annotations["example.org/rack"] = "7"

        play.connect_with(Labelled)
        play.cloud.appears_after_s = appears_after_s
        await play.put()
        await play.settle()
        assert (await play.annotations())["example.org/rack"] == "7"

    async def test_status_changes_made_by_create_are_dropped(self, play: Play) -> None:
        await play.put()
        await play.reconcile()
        assert "lost" not in (await play.document())["status"]

    async def test_the_ready_condition_is_creating_and_then_available(self, play: Play) -> None:
        observed: list[dict[str, tuple[str, str]]] = []

        class Looking(CloudClient):
            async def create(self, managed: Managed[Any]) -> None:
                observed.append(await play.conditions())
                await super().create(managed)

        play.connect_with(Looking)
        await play.put()
        await play.reconcile()
        assert observed == [{"Ready": ("False", "Creating")}]
        assert await play.conditions() == {"Ready": ("True", "Available"), "Synced": SYNCED}

    async def test_the_status_set_by_observe_is_stored(self, play: Play) -> None:
        await play.put(size=3)
        await play.edit("a", lambda document: document.update(metadata={"generation": 4}))
        await play.settle()
        status = (await play.document())["status"]
        assert (status["size"], status["observedGeneration"]) == (3, 4)

    async def test_intent_and_finalizer_are_stored_before_create_runs(self, play: Play) -> None:
        observed: list[tuple[list[str], set[str]]] = []

        async def create(_managed: Managed[Disk]) -> None:
            observed.append((await play.finalizers(), set(await play.annotations())))

        play = Play(client=lambda _: ExternalClientFns(create_fn=create))
        await play.put()
        await play.reconcile()
        assert observed == [(HELD, {"external-create-pending"})]

    async def test_create_does_not_run_if_the_object_changed_after_it_was_read(self) -> None:
        async def observe(managed: Managed[Disk]) -> Observation:
            await play.put(managed.key, size=2)  # type: ignore[attr-defined]
            return Observation()

        async def create(_managed: Managed[Disk]) -> None:
            raise AssertionError("the object has changed since it was read")

        fns = ExternalClientFns[Disk](observe_fn=observe, create_fn=create)
        play = Play(client=lambda _: fns)
        await play.put()
        with pytest.raises(RetryAfter, match="has changed since it was read"):
            await play.reconcile()
        assert await play.annotations() == {}

    async def test_intent_and_result_name_the_revision_before_the_intent(self, play: Play) -> None:
        await play.put()
        revision = (await play.store.get("a")).revision
        await play.reconcile()
        annotations = await play.annotations()
        assert annotations["external-create-pending"].endswith(f"Z revision {revision}")
        assert annotations["external-create-succeeded"].endswith(
            f"Z revision {revision} name disk-1"
        )

    async def test_a_new_intent_removes_earlier_results(self, play: Play) -> None:
        await play.put()
        await play.settle()
        play.cloud.disks.clear()
        await asyncio.sleep(60)
        play.cloud.failures["create"] = PermissionError("no more")
        with pytest.raises(PermissionError):
            await play.reconcile()
        annotations = await play.annotations()
        assert "external-create-succeeded" not in annotations
        assert annotations["external-create-failed"].endswith(
            annotations["external-create-pending"][-2:]
        )


class TestGracePeriod:
    async def test_a_created_resource_may_be_missing_during_the_grace_period(
        self, play: Play
    ) -> None:
        play.cloud.appears_after_s = 20
        await play.put()
        await play.settle()
        assert play.cloud.created == ["a"]
        assert await play.conditions() == {"Ready": ("True", "Available"), "Synced": SYNCED}

    async def test_a_created_resource_that_is_missing_is_polled_with_backoff(
        self, play: Play
    ) -> None:
        play.cloud.appears_after_s = 20
        await play.put()
        await play.settle()
        assert play.cloud.calls.count("observe") < 10

    async def test_a_missing_resource_is_created_again_after_the_grace_period(
        self, play: Play
    ) -> None:
        play.cloud.appears_after_s = 3600
        await play.put()
        await play.reconcile()
        await asyncio.sleep(29)
        await play.reconcile()
        assert play.cloud.created == ["a"]
        await asyncio.sleep(2)
        await play.reconcile()
        assert play.cloud.created == ["a", "a"]

    async def test_a_missing_resource_is_created_again_soon_after_the_grace_period(
        self, play: Play
    ) -> None:
        play.cloud.appears_after_s = 3600
        await play.put()
        while len(play.cloud.created) < 2:
            after_s = await play.reconcile()
            assert after_s is not None
            await asyncio.sleep(after_s)
        assert 29 <= asyncio.get_running_loop().time() <= 31  # stored times are in seconds

    async def test_an_older_observation_of_a_new_resource_creates_no_second_one(
        self, play: Play
    ) -> None:
        await play.put()
        await play.settle()
        play.cloud.hide("disk-1", 20)
        await play.settle()
        assert play.cloud.created == ["a"]

    async def test_a_wait_for_a_resource_that_was_observed_is_reported(self, play: Play) -> None:
        await play.put()
        await play.settle()
        play.cloud.disks.clear()
        await play.reconcile()
        assert play.recorder.events[-1].message == (
            "The external resource is missing, and is created again if it is missing 30 s after "
            "its creation"
        )

    async def test_a_wait_for_the_resource_of_a_deleted_object_is_not_reported(
        self, play: Play
    ) -> None:
        await play.put()
        await play.settle()
        play.cloud.disks.clear()
        await play.primary.delete("a")
        await play.reconcile()
        assert "WaitingForExternalResource" not in play.reasons

    async def test_a_wait_for_a_resource_that_was_never_observed_is_not_reported(
        self, play: Play
    ) -> None:
        now = clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        await play.put(external_create_pending=now, external_create_succeeded=now)
        assert await play.reconcile() is not None
        assert play.reasons == []

    async def test_a_wait_for_a_resource_that_appears_late_is_not_reported(
        self, play: Play
    ) -> None:
        play.cloud.appears_after_s = 20
        await play.put()
        await play.settle()
        assert "WaitingForExternalResource" not in play.reasons

    async def test_a_new_resource_that_others_delete_is_created_again_after_the_grace_period(
        self, play: Play
    ) -> None:
        await play.put()
        await play.settle()
        play.cloud.disks.clear()
        await asyncio.sleep(29)
        await play.reconcile()
        assert play.cloud.created == ["a"]
        await asyncio.sleep(2)
        await play.reconcile()
        assert play.cloud.created == ["a", "a"]

    async def test_the_grace_period_is_an_option(self) -> None:
        play = Play(creation_grace_period_s=300.0)
        play.cloud.appears_after_s = 3600
        await play.put()
        await play.reconcile()
        await asyncio.sleep(200)
        await play.reconcile()
        assert play.cloud.created == ["a"]

    async def test_another_reconciler_respects_the_grace_period(self, play: Play) -> None:
        play.cloud.appears_after_s = 20
        await play.put()
        await play.reconcile()
        second_process = Play(store=play.store, records=play.records, cloud=play.cloud)
        await second_process.settle()
        assert play.cloud.created == ["a"]

    async def test_the_creation_of_another_reconciler_has_a_grace_period_of_its_own(
        self, play: Play
    ) -> None:
        play.cloud.appears_after_s = 3600
        await play.put()
        for _ in range(2):
            await play.reconcile()
        await asyncio.sleep(36)
        second_process = Play(store=play.store, records=play.records, cloud=play.cloud)
        await second_process.reconcile()
        assert play.cloud.created == ["a", "a"]
        await asyncio.sleep(4)
        await play.reconcile()
        assert play.cloud.created == ["a", "a"]

    async def test_an_object_deleted_within_the_grace_period_waits_for_its_resource(
        self, play: Play
    ) -> None:
        play.cloud.appears_after_s = 20
        await play.put()
        await play.reconcile()
        await play.primary.delete("a")
        await play.settle()
        assert play.cloud.disks == {}

    async def test_a_deleted_object_waits_for_a_new_resource_that_is_not_observed_any_more(
        self, play: Play
    ) -> None:
        await play.put()
        await play.settle()
        play.cloud.hide("disk-1", 20)
        await play.primary.delete("a")
        await play.settle()
        assert play.cloud.disks == {}

    async def test_a_deletion_that_was_taken_back_does_not_shorten_the_wait_for_a_new_resource(
        self, play: Play
    ) -> None:
        await play.put()
        await play.settle()
        await play.primary.delete("a")
        await play.reconcile()
        await play.edit("a", lambda document: document["metadata"].pop("deletionTimestamp"))
        await asyncio.sleep(31)
        await play.reconcile()
        play.cloud.hide("disk-2", 20)
        await play.primary.delete("a")
        await play.settle()
        assert (play.cloud.created, play.cloud.disks) == (["a", "a"], {})

    async def test_a_new_resource_that_is_deleted_keeps_its_object_no_longer(
        self, play: Play
    ) -> None:
        await play.put()
        await play.settle()
        await play.primary.delete("a")
        await play.settle()
        assert play.cloud.disks == {}
        assert asyncio.get_running_loop().time() < 2


class ReadTimeout(Exception):  # noqa: N818 - the names that HTTP libraries use
    """The error of a library whose request was sent."""


class ConnectTimeout(Exception):  # noqa: N818 - the names that HTTP libraries use
    """The error of a library that has no connection."""


def caused(error: Exception, cause: BaseException | None) -> Exception:
    """Return the error as `raise error from cause` leaves it."""
    error.__cause__ = cause
    return error


class TestFailedCreations:
    @pytest.mark.parametrize(
        ("error", "unknown"),
        [
            (TimeoutError("cloud"), True),
            (StoreTimeoutError("cloud"), True),
            (ConnectionResetError("cloud"), True),
            (caused(ReadTimeout("cloud"), TimeoutError()), True),
            (caused(ValueError("cloud"), caused(ReadTimeout(), BrokenPipeError())), True),
            (caused(ConnectTimeout("cloud"), TimeoutError()), False),
            (caused(ReadTimeout("cloud"), None), False),
            (ConnectionRefusedError("cloud"), False),
            (KeyError("cloud"), False),
        ],
        ids=repr,
    )
    async def test_a_creation_whose_answer_may_be_lost_is_unknown(
        self,
        play: Play,
        error: Exception,
        unknown: bool,  # noqa: FBT001 - a test parameter
    ) -> None:
        play.cloud.failures["create"] = error
        await play.put()
        with pytest.raises(type(error), match="cloud"):
            await play.reconcile()
        assert ("external-create-failed" not in await play.annotations()) is unknown

    async def test_a_failed_create_is_recorded_and_retried(self, play: Play) -> None:
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

    async def test_each_failure_doubles_the_wait_which_a_change_of_the_object_ends(self) -> None:
        play, waits = Play(poll_interval_s=4.0), list[float]()
        play.cloud.failures["create"] = OSError("away")
        await play.put()
        for _ in range(4):
            with pytest.raises(OSError, match="away"):
                await play.reconcile()
            with pytest.raises(RetryAfter, match="retried later") as refused:
                await play.reconcile()
            waits.append(refused.value.delay_s)
            await asyncio.sleep(refused.value.delay_s - 0.0005)  # a timer may fire a little early
        for wait, least in zip(waits, [1.0, 2.0, 4.0, 4.0], strict=True):
            assert least - 0.01 <= wait <= 1.1 * least + 0.01  # with up to a tenth of jitter
        for size in (2, 3):
            await play.put(size=size)
            with pytest.raises(OSError, match="away"):
                await play.reconcile()
        assert play.cloud.calls.count("create") == 6

    async def test_a_success_resets_the_wait_and_another_step_needs_none(self, play: Play) -> None:
        play.cloud.failures["create"] = RetryAfter(10.0, "full")
        await play.put()
        with pytest.raises(RetryAfter, match="full"):
            await play.reconcile()
        with pytest.raises(RetryAfter, match="retried later"):
            await play.reconcile()
        play.cloud.disks["found"] = 1
        await play.annotate(external_name="found")
        await play.settle()
        play.cloud.disks.clear()
        play.cloud.failures["create"] = OSError("away")
        with pytest.raises(OSError, match="away"):
            await play.reconcile()
        with pytest.raises(RetryAfter, match="retried later") as refused:
            await play.reconcile()
        assert refused.value.delay_s <= 1.2

    async def test_a_conflict_raised_by_create_is_recorded_as_a_failure(self, play: Play) -> None:
        play.cloud.failures["create"] = ConflictError("exists")
        await play.put()
        with pytest.raises(ConflictError, match="exists"):
            await play.reconcile()
        assert "external-create-failed" in await play.annotations()
        del play.cloud.failures["create"]
        await play.settle()
        assert play.cloud.created == ["a"]

    async def test_a_change_of_the_object_triggers_an_immediate_retry(self, play: Play) -> None:
        play.cloud.failures["create"] = PermissionError("not you")
        await play.put()
        with pytest.raises(PermissionError):
            await play.reconcile()
        await play.put(size=2)
        with pytest.raises(PermissionError):
            await play.reconcile()
        assert play.cloud.calls.count("create") == 2

    async def test_a_create_that_exceeds_the_time_limit_is_cancelled_and_reported(
        self, play: Play
    ) -> None:
        play.cloud.takes_s["create"] = 100
        await play.put()
        with pytest.raises(TimeoutError, match="longer than 60 s"):
            await play.reconcile()
        assert asyncio.get_running_loop().time() == 60
        assert set(await play.annotations()) == {"external-create-pending"}
        assert (await play.conditions())["Synced"] == FAILED

    async def test_retry_after_raised_by_create_records_a_failure(self, play: Play) -> None:
        play.cloud.failures["create"] = RetryAfter(7)
        await play.put()
        with pytest.raises(RetryAfter):
            await play.reconcile()
        assert "external-create-failed" in await play.annotations()
        assert play.reasons == []
        with pytest.raises(RetryAfter) as raised:
            await play.reconcile()
        assert raised.value.delay_s == pytest.approx(7)


class TestUnknownCreations:
    @pytest.fixture
    async def play(self) -> Play:
        """Return a play in which a disk was created but its result was lost."""
        play = Play()
        play.cloud.creates_and_fails = True
        await play.put()
        with pytest.raises(TimeoutError):
            await play.reconcile()
        play.cloud.creates_and_fails = False
        play.cloud.calls.clear()
        play.recorder.events.clear()
        return play

    async def test_an_unknown_creation_stops_reconciliation_and_asks_for_help(
        self, play: Play
    ) -> None:
        for _ in range(3):
            assert await play.reconcile() is None
        assert play.cloud.calls == []
        assert "natsctl repair external resolve disks/a" in await play.message()
        assert play.reasons == ["CannotInitializeManagedResource"]

    async def test_an_object_that_was_ready_is_creating_until_the_result_is_known(self) -> None:
        play = Play()
        await play.put()
        await play.settle()
        await play.annotate(external_create_pending="2031-01-01T00:00:00Z revision 99")
        await play.reconcile()
        assert (await play.conditions())["Ready"] == ("False", "Creating")

    async def test_a_deleted_object_with_an_unknown_creation_is_not_creating(self) -> None:
        play = Play()
        await play.put()
        await play.settle()
        await play.annotate(external_create_pending="2031-01-01T00:00:00Z revision 99")
        await play.primary.delete("a")
        await play.reconcile()
        assert (await play.conditions())["Ready"] != ("False", "Creating")

    async def test_a_deleted_object_with_an_unknown_creation_keeps_its_finalizer(
        self, play: Play
    ) -> None:
        await play.primary.delete("a")
        assert await play.reconcile() is None
        assert (await play.finalizers()) == HELD

    async def test_a_deleted_object_with_deletion_policy_orphan_is_released(
        self, play: Play
    ) -> None:
        await play.annotate(deletion_policy="orphan")
        await play.primary.delete("a")
        assert await play.reconcile() is None
        assert isinstance(play.store, MemoryStore)
        assert play.store.keys() == []

    async def test_an_object_that_was_restored_to_an_earlier_state_asks_for_help_too(
        self, play: Play
    ) -> None:
        earlier = "2020-01-01T00:00:00Z revision 1"
        await play.annotate(external_create_pending=earlier, external_create_failed=earlier)
        assert await play.reconcile() is None
        assert play.cloud.created == ["a"]
        assert "natsctl repair external resolve disks/a" in await play.message()

    async def test_removing_the_intent_resumes_reconciliation(self, play: Play) -> None:
        await play.annotate(external_create_pending=None, external_name="disk-1")
        await play.settle()
        assert play.cloud.created == ["a"]
        assert (await play.conditions())["Ready"] == ("True", "Available")

    async def test_a_predetermined_name_shows_that_the_resource_was_created(self) -> None:
        play = Play(by_key=True)
        play.cloud.creates_and_fails = True
        await play.put(size=4)
        with pytest.raises(TimeoutError):
            await play.reconcile()
        await play.settle()
        assert play.cloud.created == ["a"]
        assert play.cloud.disks == {"a": 4}
        assert "external-create-succeeded" in await play.annotations()
        assert play.reasons[-1] == "CreatedExternalResource"

    async def test_a_predetermined_name_does_not_replace_the_name_of_an_object(self) -> None:
        play = Play(by_key=True)
        play.cloud.create("a", "imported", 1)
        await play.put(external_name="imported")
        await play.settle()
        assert await play.annotations() == {"external-name": "imported"}

    async def test_a_missing_resource_of_a_predetermined_name_that_was_removed_is_created_again(
        self,
    ) -> None:
        play = Play(by_key=True)
        await play.put()
        await play.settle()
        await play.annotate(external_name=None)
        play.cloud.disks.clear()
        await asyncio.sleep(31)
        await play.settle()
        assert play.cloud.disks == {"a": 1}

    async def test_a_predetermined_name_shows_that_nothing_was_created(self) -> None:
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

    async def test_a_deleted_object_with_a_predetermined_name_deletes_its_resource(self) -> None:
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


class TestUpdate:
    async def test_a_difference_is_logged_at_debug_level(
        self, play: Play, caplog: pytest.LogCaptureFixture
    ) -> None:
        await play.put(size=1)
        await play.settle()
        await play.put(size=2)
        with caplog.at_level(logging.DEBUG):
            await play.reconcile()
        message = "external resource differs"
        levels = [log.levelname for log in caplog.records if message in log.getMessage()]
        assert levels == ["DEBUG"]

    async def test_an_existing_resource_gets_the_finalizer_before_its_update(
        self, play: Play
    ) -> None:
        play.cloud.disks["found"] = 1
        await play.put(size=2, external_name="found")
        await play.settle()
        assert await play.finalizers() == HELD
        assert play.cloud.disks == {"found": 2}
        assert play.cloud.created == []

    async def test_an_update_that_does_not_change_the_status_writes_nothing(
        self, play: Play
    ) -> None:
        await play.put()
        await play.settle()
        play.cloud.disks["disk-1"] = 5
        await play.reconcile()
        play.cloud.disks["disk-1"] = 5
        assert isinstance(play.store, MemoryStore)
        writes = play.store.writes
        await play.reconcile()
        assert play.cloud.disks == {"disk-1": 1}
        assert play.store.writes == writes

    async def test_a_failed_update_is_reported_and_raised(self, play: Play) -> None:
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
    def _client(**fields: Any) -> ExternalClientFns[Disk]:
        async def observe(managed: Managed[Disk]) -> Observation:
            late = "zone" not in managed.spec
            for name, value in fields.items():
                managed.spec[name] = value
            managed.status["seen"] = True
            return Observation(exists=True, up_to_date=True, late_initialized=late)

        return ExternalClientFns(observe_fn=observe)

    async def test_late_initialized_fields_are_stored_before_the_status(self) -> None:
        play = Play(client=lambda _: self._client(zone="b"))
        await play.put(size=1)
        assert await play.reconcile() == pytest.approx(0.1)
        document = await play.document()
        assert document["spec"] == {"size": 1, "zone": "b"}
        assert document["metadata"]["generation"] == 1
        assert "status" not in document
        assert await play.reconcile() == 60
        assert (await play.document())["status"]["seen"] is True

    async def test_late_initialized_fields_of_a_new_resource_are_stored_soon(
        self, play: Play
    ) -> None:
        class Zoned(CloudClient):
            async def observe(self, managed: Managed[Any]) -> Observation:
                observation = await super().observe(managed)
                late = observation.exists and "zone" not in managed.spec
                if late:
                    managed.spec["zone"] = "b"
                return msgspec.structs.replace(observation, late_initialized=late)

        play.connect_with(Zoned)
        await play.put()
        assert await play.reconcile() == pytest.approx(0.1)
        await play.settle()
        assert (await play.document())["spec"] == {"size": 1, "zone": "b"}

    async def test_late_initialization_of_a_set_field_is_refused(self) -> None:
        play = Play(client=lambda _: self._client(size=5))
        await play.put(size=1)
        with pytest.raises(UsageError, match=r"spec\.size"):
            await play.reconcile()
        assert (await play.document())["spec"] == {"size": 1}
        assert "which was set" in await play.message()

    async def test_late_initialization_without_a_change_writes_nothing(self) -> None:
        play = Play(client=lambda _: self._client())
        await play.put(size=1)
        assert await play.reconcile() == 60

    async def test_spec_changes_without_late_initialized_are_dropped(self) -> None:
        async def observe(managed: Managed[Disk]) -> Observation:
            managed.spec["zone"] = "b"
            return Observation(exists=True, up_to_date=True)

        play = Play(client=lambda _: ExternalClientFns(observe_fn=observe))
        await play.put(size=1)
        await play.reconcile()
        assert (await play.document())["spec"] == {"size": 1}


class TestDelete:
    async def test_the_finalizer_is_removed_after_the_resource_is_gone(self, play: Play) -> None:
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

    async def test_a_slow_deletion_is_polled_with_backoff(self, play: Play) -> None:
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

    async def test_nothing_is_deleted_while_others_hold_finalizers(self, play: Play) -> None:
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

    async def test_an_object_without_an_external_resource_is_released_despite_finalizers_of_others(
        self, play: Play
    ) -> None:
        await play.put()
        await play.settle()
        await asyncio.sleep(31)  # the grace period ends
        play.cloud.disks.clear()
        await play.edit("a", lambda document: document["metadata"]["finalizers"].append("other"))
        await play.primary.delete("a")
        assert await play.reconcile() is None
        assert await play.finalizers() == ["other"]

    async def test_a_failed_deletion_is_reported_and_keeps_the_finalizer(self, play: Play) -> None:
        await play.put()
        await play.settle()
        await play.primary.delete("a")
        play.cloud.failures["delete"] = PermissionError("no")
        with pytest.raises(PermissionError):
            await play.reconcile()
        assert await play.conditions() == {"Ready": ("False", "Deleting"), "Synced": FAILED}
        assert await play.finalizers() == HELD

    async def test_deletion_policy_orphan_releases_without_an_observation(self, play: Play) -> None:
        await play.put(deletion_policy="orphan")
        await play.settle()
        play.cloud.calls.clear()
        await play.primary.delete("a")
        assert await play.reconcile() is None
        assert play.cloud.calls == []
        assert play.cloud.disks == {"disk-1": 1}

    async def test_a_resource_of_an_object_without_our_finalizer_is_not_deleted(
        self, play: Play
    ) -> None:
        play.cloud.disks["found"] = 1
        await play.put(external_name="found")
        await play.edit("a", lambda document: document["metadata"].update(finalizers=["other"]))
        await play.primary.delete("a")
        assert await play.reconcile() is None
        assert play.cloud.disks == {"found": 1}

    async def test_the_resource_of_an_object_deleted_despite_all_finalizers_is_deleted(
        self, play: Play
    ) -> None:
        await play.put()
        await play.settle()
        await play.edit("a", lambda document: document["metadata"]["finalizers"].append("theirs"))
        await play.store.delete("a")
        await play.settle()
        assert play.cloud.disks == {}

    async def test_a_resource_of_the_name_of_an_object_that_was_never_reconciled_stays(
        self,
    ) -> None:
        play = Play(by_key=True)
        play.cloud.create("other", "a", 1)
        await play.put()
        await play.store.delete("a")
        await play.settle()
        assert play.cloud.disks == {"a": 1}

    async def test_the_resource_of_an_object_that_vanished_without_a_trace_stays(
        self, play: Play
    ) -> None:
        await play.put()
        await play.settle()
        assert isinstance(play.store, MemoryStore)
        play.store.vanish("a")
        await play.settle()
        assert play.cloud.disks == {"disk-1": 1}

    async def test_an_orphaned_resource_of_an_object_deleted_despite_its_finalizer_stays(
        self, play: Play
    ) -> None:
        await play.put(deletion_policy="orphan")
        await play.settle()
        await play.store.delete("a")
        await play.settle()
        assert play.cloud.disks == {"disk-1": 1}

    async def test_the_resource_of_an_object_deleted_during_create_is_deleted(self) -> None:
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

    async def test_a_key_that_never_existed_causes_no_call(self, play: Play) -> None:
        assert await play.reconcile("missing") is None
        assert play.cloud.calls == []


class TestPause:
    async def test_a_paused_object_is_not_observed(self, play: Play) -> None:
        await play.put(paused="true")
        for _ in range(3):
            assert await play.reconcile() is None
        assert play.cloud.calls == []
        assert await play.conditions() == {"Synced": ("False", "ReconcilePaused")}
        assert play.reasons == ["ReconciliationPaused"]

    async def test_the_pause_of_a_ready_object_is_reported_once(self, play: Play) -> None:
        await play.put()
        await play.settle()
        play.recorder.events.clear()
        await play.annotate(paused="true")
        for _ in range(3):
            await play.reconcile()
        assert play.reasons == ["ReconciliationPaused"]

    async def test_a_paused_object_that_is_deleted_keeps_its_finalizer(self, play: Play) -> None:
        await play.put()
        await play.settle()
        await play.annotate(paused="true")
        await play.primary.delete("a")
        await play.reconcile()
        assert await play.finalizers() == HELD
        assert play.cloud.disks == {"disk-1": 1}

    async def test_only_the_value_true_pauses(self, play: Play) -> None:
        await play.put(paused="false")
        await play.settle()
        assert play.cloud.created == ["a"]


class TestPolicies:
    async def test_management_policy_observe_neither_creates_nor_updates(self, play: Play) -> None:
        await play.put(management_policy="observe")
        assert await play.reconcile() == 60
        assert play.cloud.created == []
        assert (await play.conditions())["Synced"] == FAILED
        play.cloud.disks["found"] = 7
        await play.annotate(external_name="found")
        assert await play.reconcile() == 60
        assert play.cloud.disks == {"found": 7}
        assert await play.conditions() == {"Ready": ("True", "Available"), "Synced": SYNCED}

    async def test_management_policy_observe_delete_does_not_update(self, play: Play) -> None:
        await play.put(management_policy="observe-delete", external_name="found")
        play.cloud.disks["found"] = 7
        await play.settle()
        assert play.cloud.disks == {"found": 7}
        await play.primary.delete("a")
        await play.settle()
        assert play.cloud.disks == {}

    async def test_management_policy_observe_create_update_does_not_delete(
        self, play: Play
    ) -> None:
        await play.put(management_policy="observe-create-update")
        await play.settle()
        await play.primary.delete("a")
        await play.settle()
        assert play.cloud.disks == {"disk-1": 1}

    async def test_default_policies_are_options_of_the_reconciler(self) -> None:
        play = Play(management_policy="observe", deletion_policy="orphan")
        await play.put()
        await play.reconcile()
        assert play.cloud.created == []

    async def test_the_default_deletion_policy_is_an_option_of_the_reconciler(self) -> None:
        play = Play(deletion_policy="orphan")
        await play.put()
        await play.settle()
        await play.primary.delete("a")
        await play.settle()
        assert play.cloud.disks == {"disk-1": 1}

    async def test_a_deletion_policy_in_the_spec_applies(self, play: Play) -> None:
        await play.put()
        await play.settle()
        await play.edit("a", lambda document: document["spec"].update(deletionPolicy="Orphan"))
        await play.primary.delete("a")
        await play.settle()
        assert play.cloud.disks == {"disk-1": 1}

    async def test_an_unknown_policy_stops_reconciliation(self, play: Play) -> None:
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
    async def test_the_default_connecter_is_the_nop_connecter(self) -> None:
        store = MemoryStore(DISKS)
        await store.create("a", b'{"spec": {"size": 1}}')
        reconciler = ManagedReconciler(primary_of(store))
        assert await reconciler.reconcile("a") is not None

    async def test_the_poll_interval_is_an_option(self) -> None:
        play = Play(poll_interval_s=5.0)
        await play.put()
        await play.reconcile()
        assert await play.reconcile() == 5

    async def test_a_hook_sets_the_poll_interval_of_an_object(self) -> None:
        play = Play(poll_interval_hook=lambda managed, usual_s: usual_s * managed.spec["size"])
        await play.put(size=3)
        await play.reconcile()
        assert await play.reconcile() == 180

    async def test_jitter_shortens_and_lengthens_the_poll_interval(self) -> None:
        play = Play(poll_jitter_s=10.0)
        await play.put()
        await play.reconcile()
        delays_s = [await play.reconcile() or 0.0 for _ in range(200)]
        assert 50 <= min(delays_s) < 57
        assert 63 < max(delays_s) <= 70

    def test_a_hook_and_a_jitter_are_mutually_exclusive(self) -> None:
        with pytest.raises(UsageError, match="poll_jitter_s"):
            Play(poll_jitter_s=1.0, poll_interval_hook=lambda _, usual_s: usual_s)

    async def test_the_finalizer_is_an_option(self) -> None:
        play = Play(finalizer="example.org/mine")
        await play.put()
        await play.reconcile()
        assert await play.finalizers() == ["example.org/mine"]

    async def test_the_domain_of_the_annotations_is_an_option(self) -> None:
        play = Play(names=AnnotationNames("example.org"))
        await play.put()
        await play.reconcile()
        annotations = (await play.document())["metadata"]["annotations"]
        assert {name.partition("/")[0] for name in annotations} == {"example.org"}

    async def test_the_logger_is_an_option(self, caplog: pytest.LogCaptureFixture) -> None:
        play = Play(logger=logging.getLogger("my.disks"))
        await play.put()
        with caplog.at_level(logging.INFO):
            await play.reconcile()
        assert "my.disks" in {record.name for record in caplog.records}

    async def test_the_critical_annotation_updater_may_be_a_function(self) -> None:
        updates: list[dict[str, str | None]] = []

        async def update(managed: Managed[Any]) -> None:
            updates.append(managed.changed_annotations)

        play = Play(critical_annotation_updater=update)
        await play.put()
        await play.reconcile()
        assert [set(update) for update in updates] == [
            {NAMES.external_name, NAMES.create_succeeded}
        ]

    async def test_the_timeout_covers_all_external_calls_of_one_reconciliation(self) -> None:
        play = Play(timeout_s=10.0)
        play.cloud.takes_s = {"connect": 4, "observe": 4, "create": 4}
        await play.put()
        with pytest.raises(TimeoutError, match="create was cut short"):
            await play.reconcile()
        assert asyncio.get_running_loop().time() == 10

    def test_a_kind_without_metadata_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"natsctl\.Object"):
            ManagedReconciler(primary_of(MemoryStore(kv(bytes, bucket="raw"))))

    def test_a_partly_watched_kind_is_refused(self) -> None:
        kind = kube("example.org/v1", "Disk", metadata_only=True)
        store = MemoryCluster(MemoryRecorder()).store(kind)
        with pytest.raises(UsageError, match="in part"):
            ManagedReconciler(primary_of(store))


class TestConnecters:
    async def test_disconnect_runs_after_every_reconciliation(self) -> None:
        cloud, calls = Cloud(), []

        async def connect(_managed: Managed[Any]) -> CloudClient:
            calls.append("connect")
            return CloudClient(cloud)

        async def disconnect() -> None:
            calls.append("disconnect")

        fns = ExternalConnectDisconnecterFns(connect_fn=connect, disconnect_fn=disconnect)
        play = Play(cloud=cloud, connecter=fns)
        await play.put()
        await play.reconcile()
        cloud.failures["observe"] = ValueError("no")
        with pytest.raises(ValueError, match="no"):
            await play.reconcile()
        assert calls == ["connect", "disconnect"] * 2

    async def test_a_failed_disconnect_is_reported_and_otherwise_ignored(self) -> None:
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

    async def test_a_disconnect_that_hangs_is_cancelled(self) -> None:
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
    async def test_a_failed_connect_or_observe_is_reported_and_raised(
        self, play: Play, call: str, reason: str
    ) -> None:
        await play.put()
        play.cloud.failures[call] = ValueError("no")
        with pytest.raises(ValueError, match="no"):
            await play.reconcile()
        assert play.reasons == [reason]
        assert await play.message() == f"cannot {call}: ValueError: no"
        assert play.cloud.created == []

    async def test_the_original_error_is_raised_if_the_status_cannot_be_stored(
        self, play: Play
    ) -> None:
        async def observe(_managed: Managed[Any]) -> Observation:
            assert isinstance(play.store, MemoryStore)
            play.store.fail(StoreError("away"))
            raise ValueError("the first")

        play = Play(client=lambda _: ExternalClientFns(observe_fn=observe))
        await play.put()
        with pytest.raises(ValueError, match="the first"):
            await play.reconcile()

    async def test_conditions_set_by_a_client_are_kept(self) -> None:
        async def observe(managed: Managed[Any]) -> Observation:
            managed.set_conditions(Condition.unavailable("it is full"))
            return Observation(exists=True, up_to_date=True)

        play = Play(client=lambda _: ExternalClientFns(observe_fn=observe))
        await play.put()
        for _ in range(2):
            await play.reconcile()
            assert (await play.conditions())["Ready"] == ("False", "Unavailable")


class TestOutages:
    """The store of the managed object fails during a reconciliation."""

    @staticmethod
    def _cut_off_by_create(play: Play) -> None:
        class Cut(CloudClient):
            async def create(self, managed: Managed[Any]) -> None:
                await super().create(managed)
                play.fail(StoreError("away"))

        play.connect_with(Cut)

    async def test_a_result_is_stored_after_a_short_outage(self, play: Play) -> None:
        self._cut_off_by_create(play)
        await play.put()
        work = asyncio.create_task(play.reconcile())
        await asyncio.sleep(10)
        play.fail(None)
        await work
        assert (await play.annotations())["external-name"] == "disk-1"

    async def test_a_result_is_stored_after_a_long_outage_by_the_same_process(
        self, play: Play
    ) -> None:
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

    async def test_an_object_is_not_linked_to_the_resource_of_an_earlier_object_of_its_key(
        self, play: Play
    ) -> None:
        self._cut_off_by_create(play)
        await play.put()
        with pytest.raises(StoreError, match="away"):
            await play.reconcile()
        play.fail(None)
        play.connect_with(CloudClient)
        await play.store.delete("a")
        await play.settle()
        assert play.cloud.disks == {}
        play.recorder.events.clear()
        await play.put()
        await play.settle()
        assert play.reasons == ["CreatedExternalResource"]
        assert play.cloud.disks == {"disk-2": 1}

    async def test_an_intent_without_an_acknowledgement_is_withdrawn(self) -> None:
        store = _LostReplyStore(DISKS)
        play = Play(store=store)
        await play.put()
        store.loses_replies = True
        with pytest.raises(StoreTimeoutError):
            await play.reconcile()
        store.loses_replies = False
        assert "external-create-pending" in await play.annotations()
        assert play.cloud.created == []
        await play.settle()
        assert play.cloud.created == ["a"]

    async def test_an_intent_that_was_not_stored_during_an_outage_is_no_unknown_creation(
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

    async def test_an_intent_that_the_store_refused_leaves_no_record(self) -> None:
        class Refusing(MemoryStore):
            refuses = True

            async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
                if self.refuses:
                    raise StoreError("away")
                return await super().update(key, value, revision=revision)

        store = Refusing(DISKS)
        play = Play(store=store)
        await play.put()
        with pytest.raises(StoreError, match="away"):
            await play.reconcile()
        store.refuses = False
        await play.put(size=2, paused="true")
        await play.settle()
        assert isinstance(play.records, MemoryStore)
        assert (play.records.keys(), play.cloud.created) == ([], [])

    async def test_a_result_does_not_overwrite_another_creation(self, play: Play) -> None:
        self._cut_off_by_create(play)
        await play.put()
        with pytest.raises(StoreError, match="away"):
            await play.reconcile()
        play.fail(None)
        await play.annotate(external_create_pending="2031-01-01T00:00:00Z revision 99")
        await play.reconcile()
        assert "external-name" not in await play.annotations()


class _RefusingStore(MemoryStore):
    """A store that refuses the documents for which *refused* returns True."""

    def __init__(self, refused: Callable[[dict[str, Any]], bool]) -> None:
        super().__init__(DISKS)
        self._refused = refused

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        if self._refused(json.loads(value)):
            raise TooLargeError("it is too large")
        return await super().update(key, value, revision=revision)


def _annotation(document: dict[str, Any], name: str) -> bool:
    return name in document.get("metadata", {}).get("annotations", {})


class TestRefusedWrites:
    """The managed object cannot be written, but its status can."""

    @staticmethod
    async def _failed(play: Play, subject: str) -> None:
        with pytest.raises(TooLargeError):
            await play.reconcile()
        assert (await play.conditions())["Synced"] == FAILED
        assert await play.message() == f"cannot store {subject}: TooLargeError: it is too large"
        assert play.reasons[-1] == "CannotUpdateManagedResource"

    async def test_an_intent_that_cannot_be_stored_is_reported(self) -> None:
        play = Play(
            store=_RefusingStore(lambda document: _annotation(document, NAMES.create_pending))
        )
        await play.put()
        await self._failed(play, "the intent to create")
        assert (await play.conditions())["Ready"] == ("False", "Creating")
        assert play.cloud.created == []

    async def test_a_finalizer_that_cannot_be_stored_is_reported(self) -> None:
        held = _RefusingStore(lambda document: bool(document.get("metadata", {}).get("finalizers")))
        play = Play(store=held)
        play.cloud.disks["found"] = 1
        await play.put(external_name="found", size=2)
        await self._failed(play, "the finalizer")
        assert play.cloud.disks == {"found": 1}

    async def test_a_finalizer_that_cannot_be_removed_is_reported(self) -> None:
        def released(document: dict[str, Any]) -> bool:
            return document["metadata"].get("finalizers") == []

        play = Play(store=_RefusingStore(released))
        await play.put()
        await play.settle()
        await asyncio.sleep(31)  # the grace period ends
        await play.primary.delete("a")
        play.cloud.disks.clear()
        await self._failed(play, "the removal of the finalizer")
        assert (await play.conditions())["Ready"] == ("False", "Deleting")

    async def test_a_late_initialization_that_cannot_be_stored_is_reported(self) -> None:
        async def observe(managed: Managed[Disk]) -> Observation:
            managed.spec["zone"] = "b"
            return Observation(exists=True, up_to_date=True, late_initialized=True)

        store = _RefusingStore(lambda document: "zone" in document["spec"])
        play = Play(store=store, client=lambda _: ExternalClientFns(observe_fn=observe))
        await play.put()
        await self._failed(play, "late initialization")

    async def test_a_result_that_cannot_be_stored_is_reported(self, play: Play) -> None:
        class Cut(CloudClient):
            async def create(self, managed: Managed[Any]) -> None:
                await super().create(managed)
                assert isinstance(play.records, MemoryStore)
                play.records.fail(TooLargeError("it is too large"))

        play.connect_with(Cut)
        await play.put()
        await self._failed(play, "the result of the creation")
        assert (await play.conditions())["Ready"] == ("False", "Creating")

    async def test_a_failed_create_is_reported_although_its_result_cannot_be_stored(
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

    async def test_the_error_of_create_is_raised_while_no_store_answers(self, play: Play) -> None:
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


class _LostReplyStore(MemoryStore):
    """A store that loses its replies while `loses_replies` is set."""

    loses_replies = False

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        stored = await super().update(key, value, revision=revision)
        if self.loses_replies:
            raise StoreTimeoutError("no answer")
        return stored


class TestCustomResources:
    """The managed object is a custom resource."""

    KIND = kube("example.org/v1", "Disk", namespace="shop")

    @pytest.fixture
    def play(self) -> Play:
        return Play(store=MemoryCluster(MemoryRecorder()).store(self.KIND), kind=self.KIND)

    async def test_a_custom_resource_is_created_and_deleted_like_a_nats_object(
        self, play: Play
    ) -> None:
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

    async def test_a_custom_resource_is_creating_until_its_resource_is_observed(
        self, play: Play
    ) -> None:
        play.cloud.appears_after_s = 20
        await play.put("shop/a")
        await play.reconcile("shop/a")
        assert await play.conditions("shop/a") == {"Ready": ("False", "Creating"), "Synced": SYNCED}

    async def test_an_unknown_creation_reports_the_annotation_to_remove(self, play: Play) -> None:
        play.cloud.creates_and_fails = True
        await play.put("shop/a")
        with pytest.raises(TimeoutError):
            await play.reconcile("shop/a")
        await play.reconcile("shop/a")
        assert f"remove the {NAMES.create_pending} annotation" in await play.message("shop/a")


class _WrappedStore:
    """A wrapper of a cluster store."""

    def __init__(self, inner: MemoryManifestStore) -> None:
        self.kind = inner.kind
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _GenerationStore(_WrappedStore):
    """A kind without a status subresource: each status write increments the generation."""

    async def patch_status(self, key: str, patch: Any, *, revision: int | None = None) -> Stored:
        await self.inner.patch_status(key, patch, revision=revision)
        document: dict[str, Any] = self.inner.document(key)
        document["metadata"]["generation"] += 1
        return await self.inner.get(key)


class _ConcurrentStore(_WrappedStore):
    """A store in which another client writes before each status write."""

    async def patch_status(self, key: str, patch: Any, *, revision: int | None = None) -> Stored:
        await self.inner.patch_status(key, {"theirs": patch.get("size", 0)})
        return await self.inner.patch_status(key, patch, revision=revision)


class TestCustomResourceStatuses:
    @staticmethod
    def _play(wrapper: type[_WrappedStore]) -> tuple[Play, MemoryManifestStore]:
        inner = MemoryCluster(MemoryRecorder()).store(TestCustomResources.KIND)
        store: Any = wrapper(inner)
        return Play(store=store, kind=TestCustomResources.KIND), inner

    async def test_a_status_write_that_increments_the_generation_causes_no_loop(self) -> None:
        play, store = self._play(_GenerationStore)
        await play.put("shop/a")
        await play.settle("shop/a")
        await play.settle("shop/a")
        writes = store.writes
        for _ in range(5):
            await play.reconcile("shop/a")
        assert store.writes == writes

    async def test_a_status_is_stored_despite_concurrent_writes(self) -> None:
        play, store = self._play(_ConcurrentStore)
        await play.put("shop/a", size=3)
        await play.settle("shop/a")
        status: Any = store.document("shop/a")["status"]
        assert status["size"] == 3
        assert "theirs" in status


def test_the_default_names_have_the_domain_natsctl_io() -> None:
    assert (FINALIZER_NAME, NAMES.external_name) == (
        "natsctl.io/managed",
        "natsctl.io/external-name",
    )


class Typed(Object, frozen=True):
    spec: dict[str, int] = msgspec.field(default_factory=dict)


async def test_an_object_is_typed_for_its_client() -> None:
    observed: list[Typed] = []

    async def observe(managed: Managed[Typed]) -> Observation:
        observed.append(managed.object)
        return Observation(exists=True, up_to_date=True)

    async def connect(_managed: Managed[Typed]) -> ExternalClientFns[Typed]:
        return ExternalClientFns(observe_fn=observe)

    store = MemoryStore(kv(Typed, bucket="typed"))
    await store.create("a", b'{"spec": {"x": 1}}')
    await ManagedReconciler(primary_of(store), connecter=connect, clock=clock).reconcile("a")
    assert observed[0].spec == {"x": 1}


class WeakKey(str):
    """A key to which a test can hold a weak reference."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("grace_s", [0.0, 3600.0])
async def test_a_deleted_object_leaves_no_memory_of_its_key(grace_s: float) -> None:
    play = Play(creation_grace_period_s=grace_s)

    async def reconcile_and_forget() -> weakref.ref[WeakKey]:
        key = WeakKey("b")
        await play.put("b")
        await play.settle(key)
        await play.primary.delete("b")
        await play.settle(key)
        await play.settle(key)
        return weakref.ref(key)

    reference = await reconcile_and_forget()
    assert isinstance(play.store, MemoryStore)
    assert play.store.keys() == []
    gc.collect()
    assert reference() is None


async def test_an_object_of_a_cluster_leaves_no_memory_after_its_grace_period() -> None:
    kind = TestCustomResources.KIND
    store = MemoryCluster(MemoryRecorder()).store(kind)
    play = Play(store=store, kind=kind, creation_grace_period_s=3600.0)

    async def reconcile() -> weakref.ref[WeakKey]:
        key = WeakKey("shop/b")
        await play.settle(key)
        return weakref.ref(key)

    await play.put("shop/b")
    reference = await reconcile()
    await asyncio.sleep(3601)
    assert reference() is not None
    await play.settle("shop/b")
    gc.collect()
    assert reference() is None
