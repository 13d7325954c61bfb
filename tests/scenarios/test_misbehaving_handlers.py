"""A misbehaving handler affects only its own key, and the error names the remedy."""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from natsctl import Controller, HandlerError, Retry, UsageError, blocking, primary
from natsctl.testing import MemoryStores, VirtualTimeLoop, running
from tests.support.controllers.all_surfaces import LIMIT_S, SURFACES, Handle, Open, on, put
from tests.support.controllers.app_controller import App, Apps, AppSpec, app_client
from tests.support.eventually import eventually


class OwnError(BaseException):
    """An exception that is not an `Exception`."""


class Unprintable(Exception):  # noqa: N818 - the name has no Error suffix on purpose
    """An exception without a text."""

    def __str__(self) -> str:
        raise LookupError("no text")


class Answers(Apps):
    """Returns or raises the value that a test sets."""

    answer: Any = None

    async def sync_handler(self, key: str) -> float | None:
        self.syncs.append(key)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


# ---- returned values


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("soon", "sync_handler returned 'soon': return seconds or None"),
        (
            -5,
            "sync_handler returned -5: return seconds or None (a number from 0 to less than 1e+12)",
        ),
        (math.nan, "sync_handler returned nan: return seconds or None (a number from 0 to"),
        (math.inf, "sync_handler returned inf: return seconds or None (a number from 0 to"),
        (10**400, "sync_handler returned 1000000000000000"),
        (True, "sync_handler returned True: return seconds or None"),
        ([], "sync_handler returned []: return seconds or None"),
        ("eyJhbGciOiJI.eyJzdWIiOiJh.c2lnbmF0dXJl", "sync_handler returned '***'"),
        ("x" * 1_000_000, "x…: return seconds or None"),
    ],
)
async def test_a_handler_that_returns_anything_but_seconds_fails_with_the_value(
    returned: object, message: str
) -> None:
    controller = Answers()
    async with running(controller) as harness:
        controller.answer = returned
        await app_client(harness).app("shop")
        await asyncio.sleep(0.02)
        [failure] = {sync.error for sync in harness.runtime.explain("shop").syncs}
        assert message in failure
        assert failure.startswith("HandlerError: ")
        assert len(failure) < 300


async def test_the_error_names_a_coroutine_that_was_not_awaited() -> None:
    async def later() -> float:
        return 5.0

    controller = Answers()
    async with running(controller) as harness:
        controller.answer = later()
        await app_client(harness).app("shop")
        await asyncio.sleep(0.02)
        [failure] = {sync.error for sync in harness.runtime.explain("shop").syncs}
    assert "HandlerError: sync_handler returned <coroutine object" in failure


@on("managed", "dynamic")
async def test_every_surface_refuses_an_invalid_returned_delay(
    surface: Open, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(key: str) -> object:
        return "soon" if key == "bad" else None

    async with surface(handle) as stores:
        await put(stores, "bad")
        await asyncio.sleep(0.02)
    assert "returned 'soon': return seconds or None" in caplog.text


# ---- exceptions


@on()
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        GeneratorExit(),
        asyncio.CancelledError(),
        OwnError("mine"),
        RecursionError(),
        MemoryError(),
        StopAsyncIteration(),
        Unprintable(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_exception_fails_its_own_key_only(surface: Open, error: BaseException) -> None:
    handled: list[str] = []

    async def handle(key: str) -> None:
        handled.append(key)
        if key == "bad":
            raise error

    async with surface(handle) as stores:
        await put(stores, "bad")
        await asyncio.sleep(1.5)
        await put(stores, "good")
        await asyncio.sleep(0.1)
    assert handled.count("bad") > 1
    assert handled.count("good") == 1


def own_task() -> "asyncio.Task[Any]":
    """Return the present task."""
    task = asyncio.current_task()
    assert task is not None
    return task


async def cancel_and_wait() -> None:
    """Cancel the own task, and wait."""
    own_task().cancel()
    await asyncio.sleep(1)


async def cancel_and_return() -> None:
    """Cancel the own task, and wait for nothing."""
    own_task().cancel()


async def time_out_as_old_libraries_do() -> None:
    """Cancel the own task by a timer, and do not count the cancellation as handled."""
    asyncio.get_running_loop().call_later(0.001, own_task().cancel)
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        raise TimeoutError from None


@on("controller", "watchers", "managed", "dynamic")
@pytest.mark.parametrize(
    "cancels", [cancel_and_wait, cancel_and_return, time_out_as_old_libraries_do]
)
async def test_a_handler_that_cancels_its_own_task_affects_its_own_key_only(
    surface: Open, cancels: Callable[[], Awaitable[None]]
) -> None:
    handled: list[str] = []

    async def handle(key: str) -> None:
        handled.append(key)
        if key.startswith("bad"):
            await cancels()

    async with surface(handle) as stores:
        for number in range(20):  # more than there are workers
            await put(stores, f"bad-{number}")
        await asyncio.sleep(1.5)
        await put(stores, "good")
        await asyncio.sleep(0.1)
    assert handled.count("good") == 1


class Sync(Apps):
    def sync_handler(self, key: str) -> None:  # type: ignore[override]  # the mistake
        """Return at once."""


async def test_a_sync_handler_that_is_not_async_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Sync\.sync_handler is not `async def`: write"):
        async with running(Sync()):
            """Never get here."""


async def test_a_retry_policy_that_fails_or_returns_garbage_is_replaced_by_backoff(
    caplog: pytest.LogCaptureFixture,
) -> None:
    decisions: Iterator[Any] = iter(["soon", Retry(math.nan), LookupError("no")])

    def policy(_error: Exception, _failures: int) -> Any:
        decision = next(decisions, Retry())
        if isinstance(decision, Exception):
            raise decision
        return decision

    class Stubborn(Answers):
        retry = policy  # type: ignore[assignment]

    controller = Stubborn()
    controller.answer = ValueError("no luck")
    async with running(controller) as harness:
        await app_client(harness).app("shop")
        await asyncio.sleep(0.1)
        assert len(controller.syncs) >= 4
    assert "the retry policy must return Retry, Drop or Stop" in caplog.text
    assert "returned=" in caplog.text
    assert "soon" in caplog.text
    assert "the retry policy failed; retrying the key with backoff" in caplog.text


# ---- time limits


@pytest.mark.parametrize(
    ("surface", "message"),
    [
        ("controller", "SyncTimeoutError: sync took longer than 10 s (sync_timeout_s)"),
        ("watchers", "SyncTimeoutError: the call took longer than 10 s (timeout_s)"),
        ("dynamic", "SyncTimeoutError: reconcile took longer than 10 s (reconcile_timeout_s)"),
    ],
)
async def test_a_timeout_names_its_limit_and_the_setting(
    surface: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(_key: str) -> None:
        await asyncio.Event().wait()

    async with SURFACES[surface](handle) as stores:
        await put(stores, "bad")
        await asyncio.sleep(LIMIT_S + 0.5)
    assert message in caplog.text
    assert "Traceback" not in caplog.text


def deaf(released: asyncio.Event) -> Handle:
    """Return a handler of the key `bad` that ignores its cancellation until it's released."""

    async def handle(key: str) -> None:
        while key == "bad" and not released.is_set():
            try:
                await released.wait()  # the line that is logged
            except asyncio.CancelledError:
                continue

    return handle


def ignored(caplog: pytest.LogCaptureFixture, cause: str = "") -> str:
    """Return the only log line about a handler that ignores its cancellation for this cause."""
    lines = [text for text in caplog.messages if "did not end after its cancellation" in text]
    [text] = [text for text in lines if cause in text]
    assert "bad" in text.splitlines()[0]
    assert "the line that is logged" in text
    return text


@on("controller", "watchers", "dynamic")
async def test_a_handler_that_ignores_its_time_limit_is_logged_with_key_and_line(
    surface: Open, caplog: pytest.LogCaptureFixture
) -> None:
    released = asyncio.Event()
    async with surface(deaf(released)) as stores:
        await put(stores, "bad")
        await asyncio.sleep(LIMIT_S + 6)
        released.set()
    assert "natsctl/core" not in ignored(caplog)


@on("controller", "watchers", "managed", "dynamic")
async def test_a_handler_that_ignores_a_stop_is_logged_with_key_and_line(
    surface: Open, caplog: pytest.LogCaptureFixture
) -> None:
    released = asyncio.Event()
    asyncio.get_running_loop().call_later(120, released.set)
    async with surface(deaf(released)) as stores:
        await put(stores, "bad")
        await asyncio.sleep(1)
    ignored(caplog, "cause=stop")


# ---- functions that block


@on()
async def test_blocking_runs_a_function_in_a_thread_and_returns_its_result(
    surface: Open,
) -> None:
    results: list[tuple[int, bool]] = []

    def work(number: int) -> tuple[int, bool]:
        return number + 1, threading.current_thread() is threading.main_thread()

    async def handle(_key: str) -> None:
        results.append(await blocking(work, 41))

    async with surface(handle) as stores:
        await put(stores, "good")
        await asyncio.sleep(0.1)
    assert results == [(42, False)]


class Threaded(Controller):
    """Works in a thread until `go` is set, and counts the threads that work at once."""

    name = "threaded"
    apps = primary(Apps.apps.kind)  # type: ignore[arg-type,var-annotated]
    sync_timeout_s = 0.05

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()
        self.together = self.most = self.calls = 0
        self.left_behind: list[asyncio.Task[None]] = []

    def work(self) -> None:
        self.calls += 1
        self.together += 1
        self.most = max(self.most, self.together)
        self.begun.set()
        self.go.wait(30)
        self.together -= 1

    async def sync_handler(self, key: str) -> float | None:
        await self.blocking(self.work)
        return None


class LeftBehind(Threaded):
    """Starts the thread in a task that the handler does not await."""

    name = "leftbehind"

    async def sync_handler(self, key: str) -> float | None:
        self.left_behind.append(asyncio.create_task(self.blocking(self.work)))
        await asyncio.sleep(0)
        return None


async def steps() -> None:
    """Let all tasks run that are ready, also while a thread works."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.parametrize("controller_type", [Threaded, LeftBehind])
async def test_a_key_stays_held_until_the_thread_of_a_timed_out_sync_has_ended(
    controller_type: type[Threaded],
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    controller = controller_type()
    async with running(controller) as harness:
        await controller.apps.put("shop", App(spec=AppSpec()))
        await steps()
        controller.begun.wait()
        loop.jump(5 * controller.sync_timeout_s)
        await steps()
        await controller.apps.put("shop", App(spec=AppSpec("again")))
        loop.jump(5 * controller.sync_timeout_s)
        await steps()
        assert (controller.calls, controller.together) == (1, 1)
        assert harness.runtime.explain("shop").syncs == []
        controller.go.set()
        await harness.run_until_idle()
        assert controller.calls > 1
        assert controller.most == 1
        first = harness.runtime.explain("shop").syncs[0]
        assert first.error.endswith("sync took longer than 0.05 s (sync_timeout_s)")
        await asyncio.gather(*controller.left_behind, return_exceptions=True)


def test_a_stop_waits_for_the_thread_of_a_cancelled_sync() -> None:
    async def sync_in_real_time() -> None:
        controller = Threaded()
        controller.sync_timeout_s = 30.0
        stores = MemoryStores()
        async with running(controller, stores=stores) as harness:
            await controller.apps.put("shop", App(spec=AppSpec()))
            await eventually(controller.begun.is_set)
            harness.runtime.stop()
            asyncio.get_running_loop().call_later(0.1, controller.go.set)
        assert controller.together == 0

    asyncio.run(sync_in_real_time())


async def test_a_task_that_outlives_its_handler_cannot_start_a_thread() -> None:
    failures: Future[BaseException] = Future()
    go = asyncio.Event()

    async def late() -> None:
        await go.wait()
        try:
            await blocking(time.sleep, 0)
        except UsageError as error:
            failures.set_result(error)

    class Careless(Apps):
        async def sync_handler(self, key: str) -> float | None:
            self.task = asyncio.create_task(late())
            return None

    controller = Careless()
    async with running(controller) as harness:
        await app_client(harness).app("shop")
        await harness.run_until_idle()
        go.set()
        await controller.task
    assert "the handler has returned, so its key is free" in str(failures.result())


# ---- start and clean


class Hooked(Apps):
    """Fails in the hook that a test names."""

    fails_in = ""

    async def start(self) -> None:
        self._fail("start")

    async def clean(self) -> None:
        self._fail("clean")

    def _fail(self, name: str) -> None:
        if name == self.fails_in:
            raise SystemExit(3) if name == "clean" else ValueError("no luck")


@pytest.mark.parametrize(
    ("name", "failure"), [("start", "ValueError: no luck"), ("clean", "SystemExit: 3")]
)
async def test_a_failed_hook_ends_the_controller_with_its_error_and_the_users_frames(
    name: str, failure: str
) -> None:
    controller = Hooked()
    controller.fails_in = name
    with pytest.raises(HandlerError) as caught:
        async with running(controller):
            await asyncio.sleep(1)
    first, *frames = str(caught.value).splitlines()
    assert first == f"hooked: {name}() failed: {failure}"
    assert "raise SystemExit(3)" in frames[-1]
    assert "natsctl/core" not in str(caught.value)
