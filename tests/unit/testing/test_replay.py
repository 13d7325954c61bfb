"""Recorded syncs are replayed."""

import asyncio
import importlib
import importlib.util
import multiprocessing
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from os import mkfifo
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from natsctl import (
    Controller,
    Object,
    Primary,
    SimpleWatcher,
    Snapshot,
    kube,
    kv,
    primary,
    secondary,
    tertiary,
)
from natsctl.core.environment import within
from natsctl.core.record.document import Recording, decode_recording
from natsctl.core.record.recordings import KeptSync, Recordings, recording_of
from natsctl.core.tape import OutsideStep
from natsctl.errors import InvalidInputError
from natsctl.managed import Managed, ManagedController, ManagedReconciler, Observation
from natsctl.model.store import Store
from natsctl.testing import (
    MemoryStore,
    MemoryStores,
    ReplayedSync,
    ReplayError,
    VirtualTimeLoop,
    replay,
    running,
)
from natsctl.testing.replaying.replay import Verdict, replay_recording
from natsctl.watchers import InformerController, OpinionatedWatcher
from tests.support.eventually import eventually

# ---- recorded syncs are replayed in memory

STORED = Path(__file__).parent / "recordings"


class ShopSpec(msgspec.Struct, frozen=True):
    slogan: str
    password: str = ""


class Shop(Object, frozen=True):
    spec: ShopSpec


class Page(Object, frozen=True):
    spec: ShopSpec


CONFIGS = kube("v1", "ConfigMap")


def by_slogan(page: Page) -> list[str]:
    return [page.spec.slogan]


class Shops(Controller):
    """Fails after its reads until `fixed`."""

    shops = primary(kv(Shop, bucket="shops"))
    pages = secondary(kv(Page, bucket="pages"))
    configs = secondary(CONFIGS)
    others = tertiary(kv(Page, bucket="others"), indexes={"slogan": by_slogan})
    fixed = False
    seen: Sequence[object] = ()

    async def sync_handler(self, key: str) -> float | None:
        shop = self.shops.get(key)
        if shop is None:
            return None
        type(self).seen = await self.look(key)
        if not self.fixed:
            raise ValueError(f"no second word in {shop.spec.slogan!r}")
        return await self.write(key, shop)

    async def look(self, key: str) -> Sequence[object]:
        del key
        return ()

    async def write(self, key: str, shop: Shop) -> float | None:
        await self.pages.apply(key, Page(spec=shop.spec))
        return None


async def recorded(
    controller: Controller,
    *,
    masked: bool = True,
    slogan: str = "Fish",
    password: str = "",
    everything: bool = False,
) -> Recording:
    """Return the recording of a sync of the key `pier`."""
    stores = MemoryStores()
    pages = stores.store(type(controller).others.kind)  # type: ignore[attr-defined]
    for name in ("first", "second"):
        spec = {"slogan": name, **({"password": password} if password else {})}
        await pages.create(name, msgspec.json.encode({"spec": spec}))
    recordings = Recordings(everything=everything)
    with within(recordings=recordings):
        async with running(controller, stores=stores) as harness:
            shops = vars(controller)["shops"]
            await shops.put("pier", Shop(spec=ShopSpec(slogan, "hunter2-of-pier")))
            await harness.run_until(lambda: recordings.of("shops", "pier"))
            pier_recording = harness.runtime.recording("pier", masked=masked)
    assert pier_recording is not None
    return decode_recording(pier_recording.encoded())


def looking(look: Callable[[Shops, str], object]) -> type[Shops]:
    """Return a controller whose handler also reads with *look*."""

    class Looking(Shops):
        name = "shops"

        async def look(self, key: str) -> Sequence[object]:
            read_result = look(self, key)
            if hasattr(read_result, "__await__"):
                read_result = await read_result
            return (read_result,)

    return Looking


def fixed(controller: type[Shops]) -> type[Shops]:
    class Fixed(controller):  # type: ignore[misc, valid-type]  # a parameter
        name = "shops"
        fixed = True

    return Fixed


def replayed(pier_recording: Recording, controller: type[Shops]) -> ReplayedSync:
    return replay_recording(pier_recording, controller)


class Fails(Shops):
    name = "shops"


@pytest.fixture
def failed(tmp_path: Path) -> Recording:
    return record_sync(Fails)


def record_sync(controller: type[Shops], **options: Any) -> Recording:
    import asyncio  # noqa: PLC0415 - the tests themselves run no loop

    from natsctl.testing import VirtualTimeLoop  # noqa: PLC0415

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(recorded(controller(), **options))


def test_a_failing_handler_fails_as_recorded(failed: Recording) -> None:
    result = replayed(failed, Fails)
    assert result.verdict is Verdict.AS_RECORDED
    assert str(result.replayed) == "ValueError: no second word in 'Fish'"


def test_a_corrected_handler_succeeds_and_its_writes_are_listed(failed: Recording) -> None:
    result = replayed(failed, fixed(Fails))
    assert result.verdict is Verdict.SUCCEEDED
    assert result.writes == ("create kv/pages pier",)
    assert result.other_writes == ("only replayed: create kv/pages pier",)


@pytest.mark.parametrize(
    "look",
    [
        lambda shops, _: shops.others.get("first"),
        lambda shops, _: shops.others.items(),
        lambda shops, _: sorted(shops.others.keys()),
        lambda shops, _: shops.others.by_index("slogan", "second"),
        lambda shops, _: shops.others.read("first"),
        lambda shops, _: shops.reads.get(kv(Page, bucket="others"), "first"),
        lambda shops, _: shops.blocking(lambda: {"answer": 42}),
        lambda shops, _: shops.pages.owned(),
    ],
    ids=["get", "items", "keys", "by_index", "read", "reads", "blocking", "owned"],
)
def test_a_recorded_read_returns_the_recorded_result(
    look: Callable[[Shops, str], object],
) -> None:
    controller = looking(look)
    pier_recording = record_sync(controller)
    expected = controller.seen
    controller.seen = ()
    assert replayed(pier_recording, controller).verdict is Verdict.AS_RECORDED
    assert controller.seen == expected


@pytest.mark.parametrize(
    "look",
    [
        lambda shops, _: shops.others.get("first"),
        lambda shops, _: shops.others.items(),
        lambda shops, _: shops.others.by_index("slogan", "second"),
        lambda shops, _: shops.others.read("first"),
        lambda shops, _: shops.reads.get(kv(Page, bucket="others"), "first"),
        lambda shops, _: shops.blocking(lambda: {"answer": 42}),
    ],
    ids=["get", "items", "by_index", "read", "reads", "blocking"],
)
def test_a_read_that_was_not_recorded_is_listed(
    failed: Recording, look: Callable[[Shops, str], object]
) -> None:
    result = replayed(failed, fixed(looking(look)))
    assert result.verdict is Verdict.NOT_RECORDED
    assert len(result.missing) == 1


def test_a_file_that_the_handler_opens_is_listed(failed: Recording, tmp_path: Path) -> None:
    file = tmp_path / "slogans.txt"
    file.write_text("Chips")
    result = replayed(failed, fixed(looking(lambda *_: file.read_text())))
    assert result.missing == (f"the file {file}",)


def kills() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def starts_a_thread(file: Path) -> threading.Thread:
    goes_on = threading.Event()

    def write() -> None:
        goes_on.wait()
        file.write_text("Chips")

    thread = threading.Thread(target=write, name="late")
    thread.goes_on = goes_on  # type: ignore[attr-defined]
    thread.start()
    return thread


def listens(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(file))


EFFECTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "signal": (lambda _: kills(), "a signal to the process"),
    "raised signal": (lambda _: signal.raise_signal(signal.SIGTERM), "signal.raise_signal()"),
    "handler": (lambda _: signal.signal(signal.SIGTERM, signal.SIG_IGN), "signal.signal()"),
    "exit": (lambda _: os._exit(9), "os._exit()"),
    "fork": (lambda _: os.fork() or os._exit(9), "another process"),
    "subprocess": (lambda _: subprocess.run(["true"], check=True), "the subprocess true"),
    "processes": (
        lambda _: multiprocessing.get_context("spawn").Process(target=print).start(),
        "_posixsubprocess.fork_exec()",
    ),
    "permissions": (lambda file: file.parent.chmod(0o700), "a change of the permissions"),
    "times": (lambda file: os.utime(file.parent), "a change of the times"),
    "pipe": (lambda file: mkfifo(file), "os.mkfifo()"),  # noqa: PLW0108 - looked up in the call
    "temporary file": (
        lambda file: tempfile.mkstemp(dir=file.parent),
        "the creation of the file",
    ),
    "copy": (lambda file: shutil.copy(__file__, file), "shutil.copyfile()"),
    "database": (sqlite3.connect, "the database"),
    "server": (listens, "a server at"),
    "variable": (lambda _: os.environ.update(SLOGANS="Chips"), "os.putenv()"),
    "appended file": (lambda file: file.open("a"), "a change of the file"),
}


@pytest.mark.parametrize("effect", EFFECTS)
def test_an_effect_is_refused_and_listed(failed: Recording, tmp_path: Path, effect: str) -> None:
    call, listed = EFFECTS[effect]
    result = replayed(failed, fixed(looking(lambda *_: call(tmp_path / "made"))))
    assert result.verdict is Verdict.NOT_RECORDED
    assert any(text.startswith(listed) for text in result.missing)
    assert list(tmp_path.iterdir()) == []


def test_a_thread_that_outlives_the_call_changes_nothing(
    failed: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    file, threads = tmp_path / "made", list[Any]()
    result = replayed(failed, fixed(looking(lambda *_: threads.append(starts_a_thread(file)))))
    assert result.missing == ("the thread late, which outlives the call",)
    threads[0].goes_on.set()
    threads[0].join()
    assert not file.exists()


def test_a_thread_that_ends_in_time_is_allowed(failed: Recording) -> None:
    async def look(*_: object) -> object:
        with ThreadPoolExecutor() as pool:
            return await asyncio.to_thread(sum, [1, 2]), pool.submit(sum, [1, 2]).result()

    assert replayed(failed, fixed(looking(look))).verdict is Verdict.SUCCEEDED


def test_a_module_that_is_imported_late_is_read(
    failed: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "quiet_shop.py").write_text("SLOGAN = 'Chips'")
    monkeypatch.syspath_prepend(tmp_path)
    result = replayed(
        failed, fixed(looking(lambda *_: importlib.import_module("quiet_shop").SLOGAN))
    )
    assert (result.verdict, result.missing) == (Verdict.SUCCEEDED, ())
    assert [path.name for path in tmp_path.iterdir()] == ["quiet_shop.py"]


def test_an_environment_variable_is_named_and_does_not_count_as_missing(
    failed: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOGANS", "Chips")
    controller = fixed(looking(lambda *_: os.environ["SLOGANS"]))
    result = replayed(failed, controller)
    assert (result.verdict, result.variables) == (Verdict.SUCCEEDED, ("SLOGANS",))
    assert "variables SLOGANS" in str(result)


def test_the_clock_and_the_randomness_are_those_of_the_recording(failed: Recording) -> None:
    def look(*_: object) -> object:
        return datetime.now(UTC), time.time(), random.random(), uuid4()

    controller = looking(look)
    replayed(failed, controller)
    first = controller.seen
    replayed(failed, controller)
    assert controller.seen == first
    assert first[0][0] == failed.started  # type: ignore[index]


def test_a_masked_recording_has_no_password(failed: Recording) -> None:
    assert b"hunter2" not in failed.encoded()


def test_an_unmasked_recording_has_the_values_as_they_are() -> None:
    assert b"hunter2-of-pier" in record_sync(Fails, masked=False).encoded()


def test_a_password_is_masked_in_an_error_too(caplog: pytest.LogCaptureFixture) -> None:
    class Leaks(Shops):
        name = "shops"

        async def look(self, key: str) -> Sequence[object]:
            shop, other = self.shops.get(key), self.others.get("second")
            assert shop is not None
            assert other is not None
            raise ValueError(f"wrong password {shop.spec.password} or {other.spec.password}")

    outcome = record_sync(Leaks, password="hunter3-of-others").outcome
    assert str(outcome) == "ValueError: wrong password *** or ***"
    assert "hunter3" not in caplog.messages[0]


def test_replay_raises_unless_the_sync_succeeds(failed: Recording, tmp_path: Path) -> None:
    file = tmp_path / "pier.json"
    file.write_bytes(failed.encoded())
    assert replay(file, fixed(Fails)).key == "pier"
    with pytest.raises(ReplayError, match="the sync fails as recorded"):
        replay(file, Fails)


@pytest.mark.parametrize("file", ["version1.json", "version2-controller.json"])
def test_a_stored_recording_of_each_version_is_replayed(file: str) -> None:
    pier_recording = decode_recording((STORED / file).read_bytes())
    assert replayed(pier_recording, Fails).verdict is Verdict.AS_RECORDED
    assert replay(STORED / file, fixed(Fails)).writes == ("create kv/pages pier",)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{}", "this isn't a recording"),
        ("nothing", "this isn't a recording"),
        ('{"format": "natsctl.io/recording", "version": 4}', "update natsctl"),
    ],
)
def test_another_file_is_refused(text: str, error: str) -> None:
    with pytest.raises(InvalidInputError, match=error):
        decode_recording(text.encode())


# ---- recorded reconciliations of managed objects are replayed in memory


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
STORED_DISKS = Path(__file__).parent / "recordings" / "version2-managed.json"


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


def record_disks(
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


def replayed_disks(recording: Recording, controller: type[object]) -> ReplayedSync:
    CLOUD.calls.clear()
    return replay_recording(recording, controller)


def test_a_recorded_observation_answers_the_client() -> None:
    recording = record_disks(
        Disks, lambda cloud: cloud.failures.update(update=RuntimeError("no quota"))
    )
    result = replayed_disks(recording, Disks)
    assert result.verdict is Verdict.AS_RECORDED
    assert str(result.replayed) == "RuntimeError: no quota"
    assert "update external a" in result.writes
    assert CLOUD.calls == []


def test_a_corrected_client_succeeds_and_an_unrecorded_write_counts_as_successful() -> None:
    result = replayed_disks(first(ThreadDisks), CorrectedDisks)
    assert result.verdict is Verdict.SUCCEEDED, result.missing
    assert "only replayed: create external a" in result.other_writes
    assert CLOUD.calls == []


def test_a_stored_reconciliation_of_version_2_is_replayed() -> None:
    recording = decode_recording(STORED_DISKS.read_bytes())
    assert recording.version == 2
    assert replayed_disks(recording, ThreadDisks).verdict is Verdict.AS_RECORDED
    assert replayed_disks(recording, CorrectedDisks).verdict is Verdict.SUCCEEDED


def test_secrets_of_external_calls_are_masked() -> None:
    def leak(cloud: Cloud) -> None:
        cloud.leaks = "hunter2-of-a"

    recording = record_disks(Disks, leak)
    assert b"hunter2" not in recording.encoded()
    assert any(
        isinstance(step, OutsideStep) and b"***" in bytes(step.result) for step in recording.steps
    )


# ---- recorded deliveries to watchers are replayed in memory


class SiteSpec(msgspec.Struct, frozen=True):
    text: str


class Site(Object, frozen=True):
    spec: SiteSpec


SITES = kv(Site, bucket="sites")
PAGES = kv(bytes, bucket="pages")
STORED_SITES = Path(__file__).parent / "recordings" / "version2-watchers.json"


class Sites(InformerController):
    """Copies each site to a page, unless the text of the site is bad."""

    good: tuple[str, ...] = ("hi", "hello")

    def __init__(self, **targets: Any) -> None:
        super().__init__(name="sites", **targets)
        self.add_informer(SITES)
        self.add_watcher(SimpleWatcher(add_func=self.add, update_func=self.change), SITES)
        self.add_watcher(SimpleWatcher(delete_func=self.remove), SITES)

    async def start(self) -> None:
        self.pages: Store = await self.open(PAGES)

    async def add(self, new: Snapshot[Site]) -> None:
        self.check(new)
        await self.pages.create(new.key, new.object.spec.text.encode())

    async def change(self, old: Snapshot[Site], new: Snapshot[Site]) -> None:
        self.check(new)
        page = await self.pages.get(old.key)
        await self.pages.update(new.key, new.object.spec.text.encode(), revision=page.revision)

    async def remove(self, last: Snapshot[Site]) -> None:
        await self.pages.delete(last.key)

    def check(self, new: Snapshot[Site]) -> None:
        if new.object.spec.text not in self.good:
            raise ValueError(f"cannot show {new.object.spec.text!r}")


class CorrectedSites(Sites):
    """Accepts every text."""

    good = ("hi", "hello", "bad")


class HeldSites(Sites):
    """Copies each site with a watcher that misses no change."""

    def __init__(self, **targets: Any) -> None:
        InformerController.__init__(self, name="sites", **targets)
        self.add_informer(SITES)
        watcher = OpinionatedWatcher(
            SITES, add_func=self.add, update_func=self.change, delete_func=self.remove
        )
        self.add_watcher(watcher, SITES)


Happens = Callable[[MemoryStore], Awaitable[object]]


def site(text: str) -> bytes:
    return msgspec.json.encode({"spec": {"text": text}})


async def put(sites: MemoryStore, text: str) -> None:
    stored = await sites.get("a")
    document = {**msgspec.json.decode(stored.value), "spec": {"text": text}}
    await sites.update("a", msgspec.json.encode(document), revision=stored.revision)


def record_call(controller: type[Sites], text: str, *changes: Happens) -> Recording:
    """Return the recording of the last delivery after the site `a` and the *changes*.

    A failed delivery comes before the others, as in a daemon.
    """

    async def record() -> Recording:
        stores, recordings = MemoryStores(), Recordings(everything=True)
        sites, running = stores.store(SITES), controller(nats=stores)
        with within(recordings=recordings):
            task = asyncio.create_task(running.run())
        await running.synced.wait()
        await sites.create("a", site(text))
        await eventually(lambda: recordings.of("sites", "a"))
        for change in changes:
            await asyncio.sleep(1)
            await change(sites)
        await asyncio.sleep(1)
        syncs = recordings.of("sites", "a")
        last = [sync for sync in syncs if sync.operation == syncs[-1].operation]
        kept = max(last, key=lambda sync: (sync.failed, len(sync.steps), sync.started))
        running.stop()
        await task
        recorded = recording_of(
            kept, running.host.informers, SITES, surface="watchers", masked=True
        )
        return decode_recording(recorded.encoded())

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(record())


def replayed_delivery(recorded: Recording, controller: type[object]) -> ReplayedSync:
    return replay_recording(recorded, controller)


def test_a_failed_delivery_fails_as_recorded() -> None:
    result = replayed_delivery(record_call(Sites, "bad"), Sites)
    assert result.verdict is Verdict.AS_RECORDED
    assert str(result.replayed) == "ValueError: cannot show 'bad'"


def test_a_corrected_watcher_gets_the_same_change_and_succeeds() -> None:
    result = replayed_delivery(record_call(Sites, "bad"), CorrectedSites)
    assert (result.verdict, result.writes) == (Verdict.SUCCEEDED, ("create kv/pages a",))


@pytest.mark.parametrize("controller", [Sites, HeldSites])
def test_an_update_is_delivered_with_the_state_before(controller: type[Sites]) -> None:
    recorded = record_call(controller, "hi", lambda sites: put(sites, "hello"))
    assert recorded.operation == "update"
    result = replayed_delivery(recorded, controller)
    assert (result.verdict, result.other_writes) == (Verdict.SUCCEEDED, ())
    assert "update kv/pages a" in result.writes


def test_a_deletion_goes_to_the_watcher_that_got_it() -> None:
    recorded = record_call(Sites, "hi", lambda sites: sites.delete("a"))
    assert recorded.delivery is not None
    assert (recorded.operation, recorded.delivery.watcher) == ("delete", "SimpleWatcher 2")
    assert replayed_delivery(recorded, Sites).writes == ("delete kv/pages a",)


def test_a_read_of_a_watcher_that_was_not_recorded_is_listed() -> None:
    recorded = record_call(Sites, "hi", lambda sites: put(sites, "bad"))
    result = replayed_delivery(recorded, CorrectedSites)
    assert (result.verdict, result.missing) == (Verdict.NOT_RECORDED, ("kv/pages a",))


def test_a_stored_delivery_of_version_2_is_replayed() -> None:
    recorded = decode_recording(STORED_SITES.read_bytes())
    assert recorded.version == 2
    assert replayed_delivery(recorded, Sites).verdict is Verdict.AS_RECORDED
    assert replayed_delivery(recorded, CorrectedSites).writes == ("create kv/pages a",)
