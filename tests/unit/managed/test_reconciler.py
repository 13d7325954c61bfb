"""The managed reconciler: its external calls, its writes and its requeue delays."""

import asyncio
import gc
import json
import logging
import weakref
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
import pytest

from natsctl import UsageError, kube, kv
from natsctl.errors import ConflictError, RetryAfter, StoreError, StoreTimeoutError
from natsctl.managed import (
    AnnotationNames,
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
    EPOCH,
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

READY = ("True", "Available")
CREATING, DELETING = ("False", "Creating"), ("False", "Deleting")
CUSTOM_DISKS = kube("example.org/v1", "Disk", namespace="shop")


@pytest.fixture
def play() -> Play:
    return Play()


async def settled(play: Play, **annotations: str) -> Play:
    """Return the play with one object whose disk was created and observed."""
    await play.put()
    await play.annotate(**annotations)
    await play.settle()
    return play


def keys(play: Play) -> list[str]:
    assert isinstance(play.store, MemoryStore)
    return play.store.keys()


class TestCreate:
    @pytest.mark.parametrize("appears_after_s", [0, 20])
    async def test_an_object_is_ready_after_three_revisions(
        self, play: Play, appears_after_s: float
    ) -> None:
        play.cloud.appears_after_s = appears_after_s
        await play.put(size=3)
        await play.settle()
        assert await play.conditions() == {"Ready": READY, "Synced": SYNCED}
        assert (await play.store.get("a")).revision == 3
        assert play.cloud.created == ["a"]
        assert play.cloud.calls.count("observe") < 10  # with backoff
        assert "WaitingForExternalResource" not in play.reasons
        status = (await play.document())["status"]
        assert status["size"] == 3
        assert "lost" not in status  # create sets no status

    async def test_intent_finalizer_and_condition_are_stored_before_create_runs(self) -> None:
        async def create(_managed: Managed[Disk]) -> None:
            assert await play.finalizers() == HELD
            assert await play.conditions() == {"Ready": CREATING}
            intents.append(await play.annotations())
            assert isinstance(play.records, MemoryStore)
            (key,) = play.records.keys()
            assert key == "links.natsctl_io.disks.a"
            assert set(json.loads((await play.records.get(key)).value)) == {"pending"}

        intents: list[dict[str, str]] = []
        play = Play(client=lambda _: ExternalClientFns(create_fn=create))
        await play.put()
        revision = (await play.store.get("a")).revision
        await play.reconcile()
        assert [set(intent) for intent in intents] == [{"external-create-pending"}]
        assert intents[0]["external-create-pending"].endswith(f"Z revision {revision}")

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

    async def test_a_new_resource_that_differs_is_updated_soon(self, play: Play) -> None:
        class Careless(CloudClient):
            async def create(self, managed: Managed[Any]) -> None:
                await super().create(managed)
                self._cloud.disks[managed.external_name] = 0

        play.connect_with(Careless)
        await play.put(size=2)
        assert await play.reconcile() == pytest.approx(0.1)
        await play.settle()
        assert play.cloud.disks == {"disk-1": 2}


class TestGracePeriod:
    @pytest.mark.parametrize(
        ("grace_s", "now"), [(30.0, clock), (300.0, clock), (30.0, lambda: EPOCH)]
    )
    async def test_a_missing_resource_is_created_again_soon_after_the_grace_period(
        self, grace_s: float, now: Callable[[], datetime]
    ) -> None:
        play = Play(creation_grace_period_s=grace_s, clock=now)
        play.cloud.appears_after_s = 3600
        await play.put()
        while len(play.cloud.created) < 2:
            after_s = await play.reconcile()
            assert after_s is not None
            assert asyncio.get_running_loop().time() < 2 * grace_s
            await asyncio.sleep(after_s)
        # stored times are in seconds
        assert grace_s - 1 <= asyncio.get_running_loop().time() <= 1.1 * grace_s + 1

    async def test_a_new_resource_that_others_delete_is_created_again_after_the_grace_period(
        self, play: Play
    ) -> None:
        await settled(play)
        play.cloud.disks.clear()
        await play.reconcile()
        assert play.recorder.events[-1].message == (
            "The external resource is missing, and is created again if it is missing 30 s after "
            "its creation"
        )
        await asyncio.sleep(29)
        await play.reconcile()
        assert play.cloud.created == ["a"]
        await asyncio.sleep(2)
        await play.reconcile()
        assert play.cloud.created == ["a", "a"]

    async def test_the_creation_of_another_process_has_a_grace_period_of_its_own(
        self, play: Play
    ) -> None:
        play.cloud.appears_after_s = 3600
        await play.put()
        for _ in range(2):
            await play.reconcile()
        await asyncio.sleep(36)
        second = Play(store=play.store, records=play.records, cloud=play.cloud)
        await second.reconcile()
        assert play.cloud.created == ["a", "a"]
        await asyncio.sleep(4)
        await play.reconcile()
        assert play.cloud.created == ["a", "a"]

    @pytest.mark.parametrize("observed", [False, True])
    async def test_a_deleted_object_waits_for_its_new_resource(
        self, play: Play, *, observed: bool
    ) -> None:
        play.cloud.appears_after_s = 0 if observed else 20
        await play.put()
        await play.reconcile()
        if observed:
            await play.settle()
            play.cloud.hide("disk-1", 20)
        await play.primary.delete("a")
        await play.settle()
        assert play.cloud.disks == {}


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
            (ConflictError("cloud"), False),
            (RetryAfter(7, "cloud"), False),
        ],
        ids=repr,
    )
    async def test_a_creation_whose_answer_may_be_lost_is_unknown(
        self, play: Play, error: Exception, *, unknown: bool
    ) -> None:
        play.cloud.failures["create"] = error
        await play.put()
        with pytest.raises(type(error), match="cloud"):
            await play.reconcile()
        assert ("external-create-failed" not in await play.annotations()) is unknown

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

    @pytest.mark.parametrize(
        ("options", "takes_s"),
        [({}, {"create": 100}), ({"timeout_s": 10.0}, {"connect": 4, "observe": 4, "create": 4})],
    )
    async def test_the_timeout_covers_all_external_calls_of_one_reconciliation(
        self, options: dict[str, Any], takes_s: dict[str, float]
    ) -> None:
        play, limit_s = Play(**options), options.get("timeout_s", 60)
        play.cloud.takes_s = takes_s
        await play.put()
        with pytest.raises(TimeoutError, match=f"create was cut short.* longer than {limit_s:g} s"):
            await play.reconcile()
        assert asyncio.get_running_loop().time() == limit_s
        assert set(await play.annotations()) == {"external-create-pending"}
        assert (await play.conditions())["Synced"] == FAILED


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
        play = await settled(Play())
        await play.annotate(external_create_pending="2031-01-01T00:00:00Z revision 99")
        await play.reconcile()
        assert (await play.conditions())["Ready"] == CREATING
        await play.primary.delete("a")
        await play.reconcile()
        assert await play.finalizers() == HELD

    async def test_a_deleted_object_keeps_its_finalizer_unless_its_policy_is_orphan(
        self, play: Play
    ) -> None:
        await play.primary.delete("a")
        assert await play.reconcile() is None
        assert await play.finalizers() == HELD
        await play.annotate(deletion_policy="orphan")
        assert await play.reconcile() is None
        assert keys(play) == []

    async def test_an_object_that_was_restored_to_an_earlier_state_asks_for_help_too(
        self, play: Play
    ) -> None:
        earlier = "2020-01-01T00:00:00Z revision 1"
        await play.annotate(external_create_pending=earlier, external_create_failed=earlier)
        assert await play.reconcile() is None
        assert play.cloud.created == ["a"]
        assert "natsctl repair external resolve disks/a" in await play.message()


class TestUpdate:
    async def test_a_resource_gets_the_finalizer_before_its_update(
        self, play: Play, caplog: pytest.LogCaptureFixture
    ) -> None:
        play.cloud.disks["found"] = 1
        await play.put(size=2, external_name="found")
        with caplog.at_level(logging.DEBUG):
            await play.settle()
        assert await play.finalizers() == HELD
        assert (play.cloud.disks, play.cloud.created) == ({"found": 2}, [])
        message = "external resource differs"
        levels = {log.levelname for log in caplog.records if message in log.getMessage()}
        assert levels == {"DEBUG"}

    @pytest.mark.parametrize(
        ("call", "reason"),
        [
            ("connect", "CannotConnectToProvider"),
            ("observe", "CannotObserveExternalResource"),
            ("update", "CannotUpdateExternalResource"),
            ("delete", "CannotDeleteExternalResource"),
        ],
    )
    async def test_a_failed_call_is_reported_and_raised(
        self, play: Play, call: str, reason: str
    ) -> None:
        await settled(play)
        await play.put(size=2)
        if call == "delete":
            await play.primary.delete("a")
        play.cloud.failures[call] = ValueError("no")
        with pytest.raises(ValueError, match="no"):
            await play.reconcile()
        ready = DELETING if call == "delete" else READY
        assert await play.conditions() == {"Ready": ready, "Synced": FAILED}
        assert play.reasons[-1] == reason
        assert (await play.message()).startswith(f"cannot {call}: ValueError: no")
        assert await play.finalizers() == HELD


def late_client(*, late: bool = True, **fields: Any) -> ExternalClientFns[Disk]:
    async def observe(managed: Managed[Disk]) -> Observation:
        initialized = late and "zone" not in managed.spec
        for name, value in fields.items():
            managed.spec[name] = value
        managed.status["seen"] = True
        return Observation(exists=True, up_to_date=True, late_initialized=initialized)

    return ExternalClientFns(observe_fn=observe)


class TestLateInitialization:
    async def test_late_initialized_fields_are_stored_before_the_status(self) -> None:
        play = Play(client=lambda _: late_client(zone="b"))
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
        play = Play(client=lambda _: late_client(size=5))
        await play.put(size=1)
        with pytest.raises(UsageError, match=r"spec\.size"):
            await play.reconcile()
        assert (await play.document())["spec"] == {"size": 1}
        assert "which was set" in await play.message()


class TestDelete:
    async def test_the_finalizer_is_removed_after_the_resource_is_gone(self, play: Play) -> None:
        play.cloud.goes_after_s = 100
        await settled(play)
        await play.primary.delete("a")
        waits = [await play.reconcile()]
        assert await play.conditions() == {"Ready": DELETING, "Synced": SYNCED}
        assert await play.finalizers() == HELD
        while waits[-1] is not None:
            await asyncio.sleep(waits[-1])
            waits.append(await play.reconcile())
        assert waits[:6] == pytest.approx([1, 1, 2, 4, 8, 16])
        assert max(wait for wait in waits if wait) <= 60
        assert keys(play) == []

    async def test_nothing_is_deleted_while_others_hold_finalizers(self, play: Play) -> None:
        await settled(play)
        await play.edit("a", lambda document: document["metadata"]["finalizers"].append("other"))
        await play.primary.delete("a")
        assert await play.reconcile() == 60
        assert play.cloud.disks == {"disk-1": 1}
        assert await play.finalizers() == [*HELD, "other"]
        assert await play.conditions() == {"Ready": DELETING, "Synced": SYNCED}
        assert "waiting for the finalizers of others: other" in json.dumps(await play.document())
        before = await play.store.get("a")
        await play.reconcile()
        assert await play.store.get("a") == before
        await play.edit("a", lambda document: document["metadata"]["finalizers"].remove("other"))
        await play.settle()
        assert play.cloud.disks == {}

    async def test_a_resource_of_an_object_without_our_finalizer_is_not_deleted(
        self, play: Play
    ) -> None:
        play.cloud.disks["found"] = 1
        await play.put(external_name="found")
        await play.edit("a", lambda document: document["metadata"].update(finalizers=["other"]))
        await play.primary.delete("a")
        assert await play.reconcile() is None
        assert play.cloud.disks == {"found": 1}

    @pytest.mark.parametrize(
        ("policy", "vanishes", "stays"),
        [("delete", False, False), ("delete", True, True), ("orphan", False, True)],
    )
    async def test_the_resource_of_an_object_deleted_despite_its_finalizers(
        self, play: Play, policy: str, *, vanishes: bool, stays: bool
    ) -> None:
        await settled(play, deletion_policy=policy)
        if vanishes:
            assert isinstance(play.store, MemoryStore)
            play.store.vanish("a")
        else:
            await play.store.delete("a")
        await play.settle()
        assert bool(play.cloud.disks) is stays


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
        assert await play.conditions() == {"Ready": READY, "Synced": SYNCED}

    async def test_management_policy_observe_delete_does_not_update(self, play: Play) -> None:
        await play.put(management_policy="observe-delete", external_name="found")
        play.cloud.disks["found"] = 7
        await play.settle()
        assert play.cloud.disks == {"found": 7}
        await play.primary.delete("a")
        await play.settle()
        assert play.cloud.disks == {}

    @pytest.mark.parametrize(
        ("options", "annotations", "spec"),
        [
            ({}, {"management_policy": "observe-create-update"}, {}),
            ({"deletion_policy": "orphan"}, {}, {}),
            ({}, {}, {"deletionPolicy": "Orphan"}),
            ({}, {"deletion_policy": "orphan"}, {}),
        ],
    )
    async def test_a_resource_outlives_its_object(
        self, options: dict[str, Any], annotations: dict[str, str], spec: dict[str, str]
    ) -> None:
        play = await settled(Play(**options), **annotations)
        await play.edit("a", lambda document: document["spec"].update(spec))
        await play.primary.delete("a")
        await play.settle()
        assert (play.cloud.disks, keys(play)) == ({"disk-1": 1}, [])

    async def test_an_unknown_policy_stops_reconciliation(self, play: Play) -> None:
        await settled(play)
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
        assert await ManagedReconciler(primary_of(store)).reconcile("a") is not None

    @pytest.mark.parametrize(
        ("options", "polled_after_s"),
        [
            ({"poll_interval_s": 5.0}, 5),
            ({"poll_interval_hook": lambda disk, usual_s: usual_s * disk.spec["size"]}, 180),
        ],
    )
    async def test_the_poll_interval_is_an_option(
        self, options: dict[str, Any], polled_after_s: float
    ) -> None:
        play = Play(**options)
        await play.put(size=3)
        await play.reconcile()
        assert await play.reconcile() == polled_after_s

    async def test_names_and_logger_are_options(self, caplog: pytest.LogCaptureFixture) -> None:
        play = Play(
            finalizer="example.org/mine",
            names=AnnotationNames("example.org"),
            logger=logging.getLogger("my.disks"),
        )
        await play.put()
        with caplog.at_level(logging.INFO):
            await play.reconcile()
        metadata = (await play.document())["metadata"]
        assert metadata["finalizers"] == ["example.org/mine"]
        assert {name.partition("/")[0] for name in metadata["annotations"]} == {"example.org"}
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

    def test_wrong_options_are_refused(self) -> None:
        with pytest.raises(UsageError, match="poll_jitter_s"):
            Play(poll_jitter_s=1.0, poll_interval_hook=lambda _, usual_s: usual_s)
        with pytest.raises(UsageError, match=r"natsctl\.Object"):
            ManagedReconciler(primary_of(MemoryStore(kv(bytes, bucket="raw"))))
        partly = kube("example.org/v1", "Disk", metadata_only=True)
        with pytest.raises(UsageError, match="in part"):
            ManagedReconciler(primary_of(MemoryCluster(MemoryRecorder()).store(partly)))

    async def test_jitter_shortens_and_lengthens_the_poll_interval(self) -> None:
        play = Play(poll_jitter_s=10.0)
        await play.put()
        await play.reconcile()
        delays_s = [await play.reconcile() or 0.0 for _ in range(200)]
        assert 50 <= min(delays_s) < 57
        assert 63 < max(delays_s) <= 70


async def test_disconnect_runs_after_every_reconciliation_and_its_failure_is_reported() -> None:
    cloud, calls = Cloud(), list[str]()

    async def connect(_managed: Managed[Any]) -> CloudClient:
        calls.append("connect")
        return CloudClient(cloud)

    async def disconnect() -> None:
        calls.append("disconnect")
        if len(calls) == 2:
            raise ValueError("stuck")

    fns = ExternalConnectDisconnecterFns(connect_fn=connect, disconnect_fn=disconnect)
    play = Play(cloud=cloud, connecter=fns)
    await play.put()
    await play.reconcile()
    assert (cloud.created, "CannotDisconnectFromProvider" in play.reasons) == (["a"], True)
    cloud.failures["observe"] = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        await play.reconcile()
    assert calls == ["connect", "disconnect"] * 2


async def test_an_object_is_not_linked_to_the_resource_of_an_earlier_object_of_its_key(
    play: Play,
) -> None:
    class Cut(CloudClient):
        """Its stores fail once its disk is created."""

        async def create(self, managed: Managed[Any]) -> None:
            await super().create(managed)
            play.fail(StoreError("away"))

    play.connect_with(Cut)
    await play.put()
    with pytest.raises(StoreError, match="away"):
        await play.reconcile()
    await asyncio.sleep(3600)
    play.fail(None)
    play.connect_with(CloudClient)
    await play.store.delete("a")
    await play.settle()
    assert play.cloud.disks == {}
    play.recorder.events.clear()
    await settled(play)
    assert play.reasons == ["CreatedExternalResource"]
    assert play.cloud.disks == {"disk-2": 1}


@pytest.mark.parametrize("everything", [False, True])
async def test_the_error_of_create_is_raised_although_its_result_cannot_be_stored(
    play: Play, *, everything: bool
) -> None:
    class Cut(CloudClient):
        async def create(self, _managed: Managed[Any]) -> None:
            assert isinstance(play.records, MemoryStore)
            play.records.fail(StoreError("away"))
            if everything:
                play.fail(StoreError("away"))
            raise PermissionError("the first")

    play.connect_with(Cut)
    await play.put()
    with pytest.raises(PermissionError, match="the first"):
        await play.reconcile()
    if not everything:
        assert await play.message() == "cannot create: PermissionError: the first"
        assert play.reasons == ["CannotUpdateManagedResource", "CannotCreateExternalResource"]
    play.fail(None)
    play.connect_with(CloudClient)
    await play.settle()
    assert play.cloud.created == ["a"]


class _GenerationStore:
    """A kind without a status subresource: each status write increments the generation."""

    def __init__(self, inner: MemoryManifestStore) -> None:
        self.kind = inner.kind
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def patch_status(self, key: str, patch: Any, *, revision: int | None = None) -> Stored:
        await self.inner.patch_status(key, patch, revision=revision)
        document: dict[str, Any] = self.inner.document(key)
        document["metadata"]["generation"] += 1
        return await self.inner.get(key)


async def test_a_status_write_that_increments_the_generation_causes_no_loop() -> None:
    inner = MemoryCluster(MemoryRecorder()).store(CUSTOM_DISKS)
    store: Any = _GenerationStore(inner)
    play = Play(store=store, kind=CUSTOM_DISKS)
    await play.put("shop/a")
    for _ in range(2):
        await play.settle("shop/a")
    writes = inner.writes
    for _ in range(5):
        await play.reconcile("shop/a")
    assert inner.writes == writes


class WeakKey(str):
    """A key to which a test can hold a weak reference."""

    __slots__ = ("__weakref__",)


async def settled_weakly(play: Play, name: str) -> weakref.ref[WeakKey]:
    key = WeakKey(name)
    await play.settle(key)
    return weakref.ref(key)


@pytest.mark.parametrize("grace_s", [0.0, 3600.0])
async def test_a_deleted_object_leaves_no_memory_of_its_key(grace_s: float) -> None:
    play = Play(creation_grace_period_s=grace_s)
    await play.put("b")
    reference = await settled_weakly(play, "b")
    await play.primary.delete("b")
    for _ in range(2):
        await play.settle("b")
    assert keys(play) == []
    gc.collect()
    assert reference() is None
