"""Recorded syncs are replayed in memory."""

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
from collections.abc import Callable, Sequence
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
    PermanentError,
    kube,
    kv,
    planning,
    primary,
    secondary,
    tertiary,
)
from natsctl.core.environment import within
from natsctl.core.plan.record import PlanRecord
from natsctl.core.record.document import Recording, decode_recording
from natsctl.core.record.recordings import Recordings
from natsctl.core.sync import current_key
from natsctl.errors import InvalidInputError, NotFoundError
from natsctl.testing import MemoryStores, ReplayedSync, ReplayError, replay, running
from natsctl.testing.replaying.outcome import Verdict
from natsctl.testing.replaying.replay import replay_recording

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
    controller: Controller, *, masked: bool = True, slogan: str = "Fish", everything: bool = False
) -> Recording:
    """Return the recording of a sync of the key `pier`."""
    stores = MemoryStores()
    pages = stores.store(type(controller).others.kind)  # type: ignore[attr-defined]
    for name in ("first", "second"):
        await pages.create(name, msgspec.json.encode({"spec": {"slogan": name}}))
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


def test_another_error_is_another_way_to_fail(failed: Recording) -> None:
    class Other(Fails):
        name = "shops"

        async def look(self, key: str) -> Sequence[object]:
            raise KeyError(key)

    assert replayed(failed, Other).verdict is Verdict.OTHERWISE


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


def test_a_swallowed_error_of_a_read_still_counts(failed: Recording) -> None:
    def look(shops: Shops, _: str) -> object:
        try:
            return shops.others.get("first")
        except Exception:  # noqa: BLE001 - the subject of the test
            return None

    assert replayed(failed, fixed(looking(look))).missing == ("others first",)


def test_a_connection_is_refused_and_listed(failed: Recording) -> None:
    def look(_: Shops, __: str) -> object:
        return socket.create_connection(("127.0.0.1", 9), timeout=1)

    result = replayed(failed, fixed(looking(look)))
    assert result.verdict is Verdict.NOT_RECORDED


def test_a_file_that_the_handler_opens_is_listed(failed: Recording, tmp_path: Path) -> None:
    file = tmp_path / "slogans.txt"
    file.write_text("Chips")
    result = replayed(failed, fixed(looking(lambda *_: file.read_text())))
    assert result.missing == (f"the file {file}",)


def test_a_file_that_the_handler_writes_is_refused(failed: Recording, tmp_path: Path) -> None:
    file = tmp_path / "slogans.txt"
    result = replayed(failed, fixed(looking(lambda *_: file.write_text("Chips"))))
    assert result.missing == (f"a change of the file {file}",)
    assert not file.exists()


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


def test_the_process_works_as_before_after_a_replay(failed: Recording, tmp_path: Path) -> None:
    replayed(failed, fixed(looking(lambda *_: None)))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("Chips")
    subprocess.run(["true"], check=True)


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


MODULE = """
from pathlib import Path

def write(file):
    Path(file).write_text("Chips")
"""


@pytest.mark.parametrize(
    "path", ["shop_inspect.py", "opentelemetry-shop/shop.py", "importlib/x.py"]
)
def test_a_module_of_the_user_is_judged_whatever_its_name(
    failed: Recording, tmp_path: Path, path: str
) -> None:
    module = tmp_path / path
    module.parent.mkdir(exist_ok=True)
    module.write_text(MODULE)
    spec = importlib.util.spec_from_file_location("shop_of_user", module)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    file = tmp_path / "made"
    result = replayed(failed, fixed(looking(lambda *_: loaded.write(file))))
    assert result.missing == (f"a change of the file {file}",)
    assert not file.exists()


def test_a_module_that_is_imported_late_is_judged(
    failed: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "made"
    (tmp_path / "late_shop.py").write_text(f"{MODULE}\nwrite({str(file)!r})")
    monkeypatch.syspath_prepend(tmp_path)
    result = replayed(failed, fixed(looking(lambda *_: importlib.import_module("late_shop"))))
    assert result.missing == (f"a change of the file {file}",)
    assert [path.name for path in tmp_path.iterdir()] == ["late_shop.py"]


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


@pytest.mark.parametrize("hook", ["start", "clean"])
def test_the_hooks_of_a_controller_are_judged_too(
    failed: Recording, tmp_path: Path, hook: str
) -> None:
    async def write(_: Shops) -> None:
        (tmp_path / "made").write_text("Chips")

    controller = fixed(looking(lambda *_: None))
    setattr(controller, hook, write)
    result = replayed(failed, controller)
    assert result.missing == (f"a change of the file {tmp_path / 'made'}",)
    assert list(tmp_path.iterdir()) == []


def test_an_environment_variable_is_named_and_does_not_count_as_missing(
    failed: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOGANS", "Chips")
    controller = fixed(looking(lambda *_: os.environ["SLOGANS"]))
    result = replayed(failed, controller)
    assert (result.verdict, result.variables) == (Verdict.SUCCEEDED, ("SLOGANS",))
    assert "variables SLOGANS" in str(result)


def test_a_variable_that_a_tracer_reads_is_not_named(failed: Recording) -> None:
    importlib.import_module("opentelemetry.sdk.trace")
    result = replayed(failed, fixed(looking(lambda *_: None)))
    assert (result.verdict, result.variables) == (Verdict.SUCCEEDED, ())


def test_a_planned_sync_is_replayed_as_a_plan() -> None:
    controller = looking(lambda *_: planning())
    with within(plan=PlanRecord(current_key, continuous=True)):
        pier_recording = record_sync(controller)
    assert controller.seen == (True,)
    replayed(pier_recording, controller)
    assert (pier_recording.planning, controller.seen) == (True, (True,))


def test_the_clock_and_the_randomness_are_those_of_the_recording(failed: Recording) -> None:
    def look(*_: object) -> object:
        return datetime.now(UTC), time.time(), random.random(), uuid4()

    controller = looking(look)
    replayed(failed, controller)
    first = controller.seen
    replayed(failed, controller)
    assert controller.seen == first
    assert first[0][0] == failed.started  # type: ignore[index]


def test_a_recorded_error_of_a_store_is_raised_again() -> None:
    class Reads(Shops):
        name = "shops"

        async def look(self, key: str) -> Sequence[object]:
            try:
                await self.others.informer.store.get("nothing")
            except NotFoundError as error:
                return (str(error),)
            return (key,)

    pier_recording = record_sync(Reads)
    expected = Reads.seen
    replayed(pier_recording, Reads)
    assert Reads.seen == expected


def test_a_permanent_failure_is_recorded_too() -> None:
    class Permanent(Shops):
        name = "shops"

        async def look(self, key: str) -> Sequence[object]:
            raise PermanentError(f"{key} can never work")

    assert replayed(record_sync(Permanent), Permanent).verdict is Verdict.AS_RECORDED


def test_a_successful_sync_of_a_recorded_key_writes_the_same_again() -> None:
    controller = fixed(Fails)
    result = replayed(record_sync(controller, everything=True), controller)
    assert result.verdict is Verdict.SUCCEEDED
    assert result.writes == ("create kv/pages pier",)


def test_a_manifest_is_applied_in_a_replay(failed: Recording) -> None:
    class Applies(Fails):
        name = "shops"
        fixed = True

        async def write(self, key: str, shop: Shop) -> float | None:
            manifest = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": key, "namespace": "default"},
                "data": {"slogan": shop.spec.slogan},
            }
            await self.configs.apply(manifest)
            return None

    assert replayed(failed, Applies).writes == ("apply kube/v1/ConfigMap default/pier",)


def test_a_masked_recording_has_no_password(failed: Recording) -> None:
    assert b"hunter2" not in failed.encoded()


def test_an_unmasked_recording_has_the_values_as_they_are() -> None:
    assert b"hunter2-of-pier" in record_sync(Fails, masked=False).encoded()


def test_a_password_is_masked_in_an_error_too() -> None:
    class Leaks(Shops):
        name = "shops"

        async def look(self, key: str) -> Sequence[object]:
            shop = self.shops.get(key)
            assert shop is not None
            raise ValueError(f"wrong password {shop.spec.password}")

    assert str(record_sync(Leaks).outcome) == "ValueError: wrong password ***"


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


def test_the_error_about_another_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "shop.json").write_text("{}")
    with pytest.raises(InvalidInputError, match=r"shop\.json: this isn't a recording"):
        replay(tmp_path / "shop.json", Fails)


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
