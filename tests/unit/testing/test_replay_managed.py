"""Recorded reconciliations of managed objects are replayed in memory."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from natsctl import Object, Primary, kv
from natsctl.core.environment import within
from natsctl.core.record.document import Recording, decode_recording
from natsctl.core.record.recordings import KeptSync, Recordings
from natsctl.core.record.writing import recording_of
from natsctl.core.tape import OutsideStep
from natsctl.errors import UsageError
from natsctl.managed import Managed, ManagedController, ManagedReconciler, Observation
from natsctl.testing import MemoryStores, ReplayedSync, VirtualTimeLoop
from natsctl.testing.replaying.outcome import Verdict
from natsctl.testing.replaying.replay import replay_recording
from natsctl.watchers import InformerController
from tests.support.eventually import eventually


class DiskSpec(msgspec.Struct, frozen=True):
    size: int


class Disk(Object, frozen=True):
    spec: DiskSpec


DISKS = kv(Disk, bucket="disks")


class Cloud:
    """The disks of a cloud by name, and the calls that it got."""

    def __init__(self, **disks: int) -> None:
        self.disks = disks
        self.calls: list[str] = []
        self.failures: dict[str, Exception] = {}
        self.leaks = ""

    def call(self, verb: str) -> None:
        self.calls.append(verb)
        if verb in self.failures:
            raise self.failures[verb]


CLOUD = Cloud()
STORED = Path(__file__).parent / "recordings" / "version2-managed.json"


class Client:
    """A client that calls the cloud directly."""

    async def observe(self, managed: Managed[Disk]) -> Observation:
        CLOUD.call("observe")
        size = CLOUD.disks.get(managed.external_name)
        if size is None:
            return Observation()
        managed.status["size"] = size
        if CLOUD.leaks:
            managed.status["password"] = CLOUD.leaks
        return Observation(exists=True, up_to_date=size == managed.spec["size"])

    async def create(self, managed: Managed[Disk]) -> None:
        CLOUD.call("create")
        managed.external_name = f"disk-{len(CLOUD.disks) + 1}"
        CLOUD.disks[managed.external_name] = managed.spec["size"]

    async def update(self, managed: Managed[Disk]) -> None:
        CLOUD.call("update")
        CLOUD.disks[managed.external_name] = managed.spec["size"]

    async def delete(self, managed: Managed[Disk]) -> None:
        CLOUD.call("delete")
        CLOUD.disks.pop(managed.external_name, None)


class Disks(ManagedController[Disk]):
    """Reconciles disks with a direct client."""

    kind = DISKS

    def reconciler(self, managed: Primary[Disk]) -> ManagedReconciler[Disk]:
        return ManagedReconciler(managed, connecter=self.connect, recorder=self)

    async def connect(self, _managed: Managed[Disk]) -> Client:
        CLOUD.call("connect")
        return Client()


class ThreadClient(Client):
    """A client that reads the cloud in a thread, and expects another answer."""

    async def observe(self, managed: Managed[Disk]) -> Observation:
        answer = await Disks.blocking(read, managed.external_name)
        size = self.size_in(answer)
        return Observation(exists=size is not None, up_to_date=size == managed.spec["size"])

    def size_in(self, answer: dict[str, Any]) -> int | None:
        size: int | None = answer["size"]
        return size


class CorrectedClient(ThreadClient):
    """The client with the field that the cloud has."""

    def size_in(self, answer: dict[str, Any]) -> int | None:
        return answer["gigabytes"]


def read(name: str) -> dict[str, Any]:
    CLOUD.call("read")
    return {"gigabytes": CLOUD.disks.get(name)}


class ThreadDisks(Disks):
    """Reconciles disks with the client that reads in a thread."""

    name = "disks"
    client: type[Client] = ThreadClient

    async def connect(self, _managed: Managed[Disk]) -> Client:
        return self.client()


class CorrectedDisks(ThreadDisks):
    name = "disks"
    client = CorrectedClient


@pytest.fixture(autouse=True)
def cloud() -> Cloud:
    global CLOUD  # noqa: PLW0603 - a replay makes a new controller of the class
    CLOUD = Cloud()
    return CLOUD


def grow(document: dict[str, Any]) -> None:
    document["spec"]["size"] += 1


def go(document: dict[str, Any]) -> None:
    document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def record_sync(
    controller: type[Disks],
    happens: Callable[[Cloud], object] = lambda _: None,
    edit: Callable[[dict[str, Any]], object] = grow,
) -> Recording:
    """Return the recording of the sync after the disk `a` settled, *happens* and the *edit*."""

    async def record() -> Recording:
        stores, recordings = MemoryStores(), Recordings(everything=True)
        disks, running = stores.store(DISKS), controller(nats=stores)
        with within(recordings=recordings):
            task = asyncio.create_task(running.run())
        await disks.create("a", b'{"spec": {"size": 1}}')
        await asyncio.sleep(5)
        happens(CLOUD)
        stored = await disks.get("a")
        document = msgspec.json.decode(stored.value)
        edit(document)
        before = recordings.of("disks", "a")[-1].started
        await disks.update("a", msgspec.json.encode(document), revision=stored.revision)

        def later() -> list[KeptSync]:
            return [sync for sync in recordings.of("disks", "a") if sync.started > before]

        await eventually(later)
        return await ended(running, task, later()[0])

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(record())


async def ended(
    running: ManagedController[Any], task: asyncio.Task[None], kept: KeptSync
) -> Recording:
    """Stop the controller, and return a sync as it is read from a file."""
    running.stop()
    await task
    recording = recording_of(kept, running.host.informers, DISKS, surface="managed", masked=True)
    return decode_recording(recording.encoded())


def first(controller: type[Disks]) -> Recording:
    """Return the recording of the first sync of the disk `a`."""

    async def record() -> Recording:
        stores, recordings = MemoryStores(), Recordings(everything=True)
        running = controller(nats=stores)
        with within(recordings=recordings):
            task = asyncio.create_task(running.run())
        await stores.store(DISKS).create("a", b'{"spec": {"size": 1}}')
        await eventually(lambda: recordings.of("disks", "a"))
        return await ended(running, task, recordings.of("disks", "a")[0])

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(record())


def replayed(recording: Recording, controller: type[object]) -> ReplayedSync:
    CLOUD.calls.clear()
    return replay_recording(recording, controller)


def test_a_recorded_observation_answers_the_client() -> None:
    recording = record_sync(
        Disks, lambda cloud: cloud.failures.update(update=RuntimeError("no quota"))
    )
    result = replayed(recording, Disks)
    assert result.verdict is Verdict.AS_RECORDED
    assert str(result.replayed) == "RuntimeError: no quota"
    assert "update external a" in result.writes
    assert CLOUD.calls == []


def test_a_successful_reconciliation_succeeds_again_without_differences() -> None:
    result = replayed(record_sync(Disks), Disks)
    assert (result.verdict, result.other_writes) == (Verdict.SUCCEEDED, ())


def test_a_failed_observation_fails_as_recorded() -> None:
    recording = record_sync(Disks, lambda cloud: cloud.failures.update(observe=OSError("no route")))
    assert str(replayed(recording, Disks).replayed) == "OSError: no route"


def test_a_failed_connection_fails_as_recorded() -> None:
    recording = record_sync(Disks, lambda cloud: cloud.failures.update(connect=OSError("no login")))
    assert str(replayed(recording, Disks).replayed) == "OSError: no login"


def test_a_creation_is_answered_as_recorded() -> None:
    result = replayed(first(Disks), Disks)
    assert (result.verdict, result.other_writes) == (Verdict.SUCCEEDED, ())
    assert "create external a" in result.writes
    assert CLOUD.calls == []


def test_a_failed_creation_fails_as_recorded() -> None:
    CLOUD.failures["create"] = ValueError("no zone")
    result = replayed(first(Disks), Disks)
    assert result.verdict is Verdict.AS_RECORDED
    assert result.other_writes == ()


def test_a_deletion_is_answered_as_recorded() -> None:
    result = replayed(record_sync(Disks, edit=go), Disks)
    assert (result.verdict, result.other_writes) == (Verdict.SUCCEEDED, ())
    assert "delete external a" in result.writes


def test_a_client_that_reads_in_a_thread_is_called_with_the_recorded_answer() -> None:
    result = replayed(first(ThreadDisks), ThreadDisks)
    assert (result.verdict, str(result.replayed)) == (Verdict.AS_RECORDED, "KeyError: 'size'")
    assert CLOUD.calls == []


def test_a_corrected_client_succeeds_and_an_unrecorded_write_counts_as_successful() -> None:
    result = replayed(first(ThreadDisks), CorrectedDisks)
    assert result.verdict is Verdict.SUCCEEDED, result.missing
    assert "only replayed: create external a" in result.other_writes
    assert CLOUD.calls == []


def test_an_observation_that_was_not_recorded_is_listed() -> None:
    CLOUD.failures["connect"] = OSError("no login")
    recording = first(Disks)
    steps = tuple(
        step for step in recording.steps if getattr(step, "name", "") != "external connect"
    )
    result = replayed(msgspec.structs.replace(recording, steps=steps), Disks)
    assert result.missing == ("the result of external connect",)


def test_a_stored_recording_of_version_2_is_replayed() -> None:
    recording = decode_recording(STORED.read_bytes())
    assert recording.version == 2
    assert replayed(recording, ThreadDisks).verdict is Verdict.AS_RECORDED
    assert replayed(recording, CorrectedDisks).verdict is Verdict.SUCCEEDED


def test_secrets_of_external_calls_are_masked() -> None:
    def leak(cloud: Cloud) -> None:
        cloud.leaks = "hunter2-of-a"

    recording = record_sync(Disks, leak)
    assert b"hunter2" not in recording.encoded()
    assert any(
        isinstance(step, OutsideStep) and b"***" in bytes(step.result) for step in recording.steps
    )


def test_a_class_of_another_kind_is_refused() -> None:
    with pytest.raises(
        UsageError, match="InformerController isn't a subclass of ManagedController"
    ):
        replayed(first(Disks), InformerController)
