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
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from os import mkfifo
from pathlib import Path
from typing import Any, ParamSpec
from uuid import uuid4

import msgspec
import pytest

from natsctl import (
    Controller,
    Object,
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
from natsctl.managed import Managed, ManagedController, Observation
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
from natsctl.testing.replaying.replay import Verdict
from natsctl.testing.replaying.replay import replay_recording as replayed
from natsctl.watchers import InformerController, OpinionatedWatcher
from tests.support.controllers.disk_reconciler import DISKS, Cloud, CloudClient, Disk, ManagedDisks
from tests.support.eventually import eventually

P = ParamSpec("P")


def in_memory(record: Callable[P, Coroutine[Any, Any, Recording]]) -> Callable[P, Recording]:
    """Let a function record in virtual time."""

    def recorded(*args: P.args, **options: P.kwargs) -> Recording:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return runner.run(record(*args, **options))

    return recorded


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


@in_memory
async def record_sync(
    controller_type: type[Shops], *, masked: bool = True, password: str = ""
) -> Recording:
    """Return the recording of a sync of the key `pier`."""
    controller, stores = controller_type(), MemoryStores()
    pages = stores.store(controller_type.others.kind)
    for name in ("first", "second"):
        spec = {"slogan": name, **({"password": password} if password else {})}
        await pages.create(name, msgspec.json.encode({"spec": spec}))
    recordings = Recordings()
    with within(recordings=recordings):
        async with running(controller, stores=stores) as harness:
            await controller.shops.put("pier", Shop(spec=ShopSpec("Fish", "hunter2-of-pier")))
            await harness.run_until(lambda: recordings.of("shops", "pier"))
            recording = harness.runtime.recording("pier", masked=masked)
    assert recording is not None
    return decode_recording(recording.encoded())


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


class Fails(Shops):
    name = "shops"


@pytest.fixture(scope="module")
def failed() -> Recording:
    return record_sync(Fails)


def test_a_failing_handler_fails_as_recorded_and_a_corrected_one_succeeds(
    failed: Recording, tmp_path: Path
) -> None:
    result = replayed(failed, Fails)
    assert result.verdict is Verdict.AS_RECORDED
    assert str(result.replayed) == "ValueError: no second word in 'Fish'"
    file = tmp_path / "pier.json"
    file.write_bytes(failed.encoded())
    with pytest.raises(ReplayError, match="the sync fails as recorded"):
        replay(file, Fails)
    corrected = replay(file, fixed(Fails))
    assert corrected.writes == ("create kv/pages pier",)
    assert corrected.other_writes == ("only replayed: create kv/pages pier",)


READS: dict[str, Callable[[Shops, str], object]] = {
    "get": lambda shops, _: shops.others.get("first"),
    "items": lambda shops, _: shops.others.items(),
    "by_index": lambda shops, _: shops.others.by_index("slogan", "second"),
    "read": lambda shops, _: shops.others.read("first"),
    "reads": lambda shops, _: shops.reads.get(kv(Page, bucket="others"), "first"),
    "blocking": lambda shops, _: shops.blocking(lambda: {"answer": 42}),
    "keys": lambda shops, _: sorted(shops.others.keys()),
    "owned": lambda shops, _: shops.pages.owned(),
}


@pytest.mark.parametrize("read", READS)
def test_a_recorded_read_returns_the_recorded_result(read: str) -> None:
    controller = looking(READS[read])
    recording = record_sync(controller)
    expected = controller.seen
    controller.seen = ()
    assert replayed(recording, controller).verdict is Verdict.AS_RECORDED
    assert controller.seen == expected


@pytest.mark.parametrize("read", list(READS)[:6])
def test_a_read_that_was_not_recorded_is_listed(failed: Recording, read: str) -> None:
    result = replayed(failed, fixed(looking(READS[read])))
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
    "temporary file": (lambda file: tempfile.mkstemp(dir=file.parent), "the creation of the file"),
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


def test_only_an_unmasked_recording_has_a_password(failed: Recording) -> None:
    assert b"hunter2" not in failed.encoded()
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


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{}", "this isn't a recording"),
        ('{"format": "natsctl.io/recording", "version": 4}', "update natsctl"),
    ],
)
def test_another_file_is_refused(text: str, error: str) -> None:
    with pytest.raises(InvalidInputError, match=error):
        decode_recording(text.encode())


# ---- recorded reconciliations of managed objects are replayed in memory


class Disks(ManagedDisks):
    """Reconciles the disks of a cloud, with a client that calls it directly."""

    name = "disks"
    cloud = Cloud()
    client: type[CloudClient] = CloudClient

    async def connect(self, _managed: Managed[Disk]) -> CloudClient:
        return self.client(self.cloud)


class ThreadClient(CloudClient):
    """A client that reads the cloud in a thread, and expects another answer."""

    field = "size"

    async def observe(self, managed: Managed[Any]) -> Observation:
        answer = await Disks.blocking(read, managed.external_name)
        size = answer[self.field]
        return Observation(exists=size is not None, up_to_date=size == managed.spec["size"])


def read(name: str) -> dict[str, int | None]:
    Disks.cloud.calls.append("read")
    return {"gigabytes": Disks.cloud.disks.get(name)}


class CorrectedClient(ThreadClient):
    field = "gigabytes"


class LeakingClient(CloudClient):
    async def observe(self, managed: Managed[Any]) -> Observation:
        managed.status["password"] = "hunter2-of-a"
        return await super().observe(managed)


class ThreadDisks(Disks):
    name = "disks"
    client = ThreadClient


class CorrectedDisks(Disks):
    name = "disks"
    client = CorrectedClient


class LeakingDisks(Disks):
    name = "disks"
    client = LeakingClient


@pytest.fixture(autouse=True)
def _new_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disks, "cloud", Cloud())


@in_memory
async def record_disks(
    controller: type[Disks], happens: Callable[[Cloud], object] | None = None
) -> Recording:
    """Return the recording of the first sync of the disk `a`.

    If something *happens*, it's that of the sync after it and a change of the size.
    """
    stores, recordings = MemoryStores(), Recordings(everything=True)
    disks, running = stores.store(DISKS), controller(nats=stores)
    with within(recordings=recordings):
        task = asyncio.create_task(running.run())
    await disks.create("a", b'{"spec": {"size": 1}}')
    if happens is None:
        await eventually(lambda: recordings.of("disks", "a"))
        return await ended(running, task, recordings.of("disks", "a")[0])
    await asyncio.sleep(5)
    happens(controller.cloud)
    stored = await disks.get("a")
    document = {**msgspec.json.decode(stored.value), "spec": {"size": 2}}
    before = recordings.of("disks", "a")[-1].started
    await disks.update("a", msgspec.json.encode(document), revision=stored.revision)

    def later() -> list[KeptSync]:
        return [sync for sync in recordings.of("disks", "a") if sync.started > before]

    await eventually(later)
    return await ended(running, task, later()[0])


async def ended(running: Any, task: asyncio.Task[None], kept: KeptSync) -> Recording:
    """Stop the controller, and return a sync as it is read from a file."""
    running.stop()
    await task
    managed = isinstance(running, ManagedController)
    recording = recording_of(
        kept,
        running.host.informers,
        DISKS if managed else SITES,
        surface="managed" if managed else "watchers",
        masked=True,
    )
    return decode_recording(recording.encoded())


def replayed_disks(recording: Recording, controller: type[object]) -> ReplayedSync:
    Disks.cloud.calls.clear()
    result = replayed(recording, controller)
    assert Disks.cloud.calls == []
    return result


def test_a_recorded_observation_answers_the_client() -> None:
    recording = record_disks(
        Disks, lambda cloud: cloud.failures.update(update=RuntimeError("no quota"))
    )
    result = replayed_disks(recording, Disks)
    assert result.verdict is Verdict.AS_RECORDED
    assert str(result.replayed) == "RuntimeError: no quota"
    assert "update external a" in result.writes


def test_a_corrected_client_succeeds_and_an_unrecorded_write_counts_as_successful() -> None:
    result = replayed_disks(record_disks(ThreadDisks), CorrectedDisks)
    assert result.verdict is Verdict.SUCCEEDED, result.missing
    assert "only replayed: create external a" in result.other_writes


def test_secrets_of_external_calls_are_masked() -> None:
    recording = record_disks(LeakingDisks, lambda _: None)
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


@in_memory
async def record_call(controller: type[Sites], text: str, *changes: Happens) -> Recording:
    """Return the recording of the last delivery after the site `a` and the *changes*.

    A failed delivery comes before the others, as in a daemon.
    """
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
    return await ended(running, task, kept)


def test_a_failed_delivery_fails_as_recorded_and_a_corrected_watcher_gets_it() -> None:
    recorded = record_call(Sites, "bad")
    result = replayed(recorded, Sites)
    assert result.verdict is Verdict.AS_RECORDED
    assert str(result.replayed) == "ValueError: cannot show 'bad'"
    result = replayed(recorded, CorrectedSites)
    assert (result.verdict, result.writes) == (Verdict.SUCCEEDED, ("create kv/pages a",))


@pytest.mark.parametrize("controller", [Sites, HeldSites])
def test_an_update_is_delivered_with_the_state_before(controller: type[Sites]) -> None:
    recorded = record_call(controller, "hi", lambda sites: put(sites, "hello"))
    assert recorded.operation == "update"
    result = replayed(recorded, controller)
    assert (result.verdict, result.other_writes) == (Verdict.SUCCEEDED, ())
    assert "update kv/pages a" in result.writes


def test_a_deletion_goes_to_the_watcher_that_got_it() -> None:
    recorded = record_call(Sites, "hi", lambda sites: sites.delete("a"))
    assert recorded.delivery is not None
    assert (recorded.operation, recorded.delivery.watcher) == ("delete", "SimpleWatcher 2")
    assert replayed(recorded, Sites).writes == ("delete kv/pages a",)


def test_a_read_of_a_watcher_that_was_not_recorded_is_listed() -> None:
    recorded = record_call(Sites, "hi", lambda sites: put(sites, "bad"))
    result = replayed(recorded, CorrectedSites)
    assert (result.verdict, result.missing) == (Verdict.NOT_RECORDED, ("kv/pages a",))


@pytest.mark.parametrize(
    ("file", "fails", "corrected"),
    [
        ("version1", Fails, fixed(Fails)),
        ("version2-controller", Fails, fixed(Fails)),
        ("version2-managed", ThreadDisks, CorrectedDisks),
        ("version2-watchers", Sites, CorrectedSites),
    ],
)
def test_a_stored_recording_of_each_version_is_replayed(
    file: str, fails: type[object], corrected: type[object]
) -> None:
    recorded = decode_recording((STORED / f"{file}.json").read_bytes())
    assert recorded.version == int(file[7])
    assert replayed(recorded, fails).verdict is Verdict.AS_RECORDED
    assert replayed(recorded, corrected).verdict is Verdict.SUCCEEDED
