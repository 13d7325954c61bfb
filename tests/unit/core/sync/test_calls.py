"""Calls of a user's code end with a result or an `Exception`, within their time."""

import asyncio
import math
import threading
from contextlib import suppress
from typing import Any

import pytest

from natsctl import blocking
from natsctl.core.planning.record import PlanRecord, current_plan
from natsctl.core.sync import (
    Calls,
    Sync,
    awaitable,
    call_hook,
    current_key,
    current_sync,
    delay_of,
    report_stuck,
    running,
    sync_in,
)
from natsctl.errors import HandlerError, PlanningError, SyncTimeoutError, UsageError
from natsctl.telemetry.hiding import SHOWN_MAX, shown
from natsctl.time_limit import IGNORED_S


@pytest.fixture
def sync_calls() -> Calls:
    return Calls("apps", "sync_handler", limit_s=10, setting="sync_timeout_s")


class TestResults:
    async def test_a_call_returns_its_result(self, sync_calls: Calls) -> None:
        async def handler(key: str) -> str:
            return f"done {key}"

        assert await sync_calls.call("shop", handler) == "done shop"

    async def test_a_call_belongs_to_the_current_sync(self, sync_calls: Calls) -> None:
        async def handler(_key: str) -> Sync | None:
            return current_sync.get()

        with Sync("shop") as sync:
            assert await sync_calls.call("shop", handler) is sync
            assert sync.over
            assert await sync_calls.call("shop", handler) is not sync

    async def test_a_call_may_return_an_awaitable_that_is_no_coroutine(
        self, sync_calls: Calls
    ) -> None:
        future = asyncio.get_running_loop().create_future()
        future.set_result(42)
        assert await sync_calls.call("shop", lambda _key: future) == 42

    async def test_the_delay_of_a_call_is_checked(self, sync_calls: Calls) -> None:
        async def handler(_key: str) -> object:
            return "soon"

        with pytest.raises(HandlerError, match="sync_handler returned 'soon'"):
            await sync_calls.delay("shop", handler)


class TestFailures:
    async def fail(self, sync_calls: Calls, error: BaseException, after_s: float = 0.0) -> None:
        async def handler(_key: str) -> None:
            if after_s:
                await asyncio.sleep(after_s)
            raise error

        await sync_calls.call("shop", handler)

    @pytest.mark.parametrize("after_s", [0.0, 1.0])
    async def test_an_exception_is_raised_as_it_is(self, sync_calls: Calls, after_s: float) -> None:
        error = ValueError("mine")
        with pytest.raises(ValueError, match="mine") as raised:
            await self.fail(sync_calls, error, after_s)
        assert raised.value is error

    @pytest.mark.parametrize("after_s", [0.0, 1.0])
    @pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit()])
    async def test_another_exception_is_a_failure(
        self, sync_calls: Calls, error: BaseException, after_s: float
    ) -> None:
        with pytest.raises(RuntimeError, match="the handler raised"):
            await self.fail(sync_calls, error, after_s)

    @pytest.mark.parametrize("after_s", [0.0, 1.0])
    async def test_a_cancellation_that_the_code_raises_itself_is_a_failure(
        self, sync_calls: Calls, after_s: float
    ) -> None:
        with pytest.raises(RuntimeError, match="something that was cancelled"):
            await self.fail(sync_calls, asyncio.CancelledError(), after_s)

    async def test_a_cancellation_from_outside_is_no_failure(self, sync_calls: Calls) -> None:
        async def handler(_key: str) -> None:
            await asyncio.sleep(5)

        running = asyncio.create_task(sync_calls.call("shop", handler))
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.wait((running,))
        assert running.cancelled()

    async def test_code_that_is_no_coroutine_has_failed(self, sync_calls: Calls) -> None:
        def handler(_key: str) -> Any:
            return 3

        with pytest.raises(HandlerError, match="handler returned 3 at once: write it with `async"):
            await sync_calls.call("shop", handler)

    async def test_a_call_that_takes_too_long_has_failed(self, sync_calls: Calls) -> None:
        async def handler(_key: str) -> None:
            await asyncio.sleep(11)

        with pytest.raises(SyncTimeoutError, match=r"longer than 10 s \(sync_timeout_s\)"):
            await sync_calls.call("shop", handler)
        assert asyncio.get_running_loop().time() == 10

    async def test_a_call_without_a_limit_takes_as_long_as_it_wants(self) -> None:
        async def handler(_key: str) -> int:
            await asyncio.sleep(1e6)
            return 42

        assert await Calls("apps", "clean").call("shop", handler) == 42

    async def test_a_call_that_ignores_its_limit_is_logged_with_its_place(
        self, sync_calls: Calls, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def stubborn(_key: str) -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1e6)
            await asyncio.sleep(2 * IGNORED_S)

        await sync_calls.call("shop", stubborn)
        assert "did not end after its cancellation" in caplog.text
        assert "stubborn" in caplog.text


class TestCurrentCall:
    async def test_no_call_is_current_outside_of_calls(self) -> None:
        assert (current_sync.get(), current_key(), running) == (None, "", {})

    @pytest.mark.parametrize("wait_s", [0.0, 1.0])
    async def test_a_call_is_current_until_it_ends(self, sync_calls: Calls, wait_s: float) -> None:
        keys: list[str] = []

        async def handler(_key: str) -> None:
            if wait_s:
                await asyncio.sleep(wait_s)
            keys.append(current_key())

        await sync_calls.call("shop", handler)
        assert keys == ["shop"]
        assert (current_sync.get(), running) == (None, {})

    @pytest.mark.parametrize("wait_s", [0.0, 1.0])
    async def test_a_failed_call_is_not_current(self, sync_calls: Calls, wait_s: float) -> None:
        async def handler(_key: str) -> None:
            if wait_s:
                await asyncio.sleep(wait_s)
            raise KeyError

        with pytest.raises(KeyError):
            await sync_calls.call("shop", handler)
        assert (current_sync.get(), running) == (None, {})

    async def test_the_call_of_a_task_is_found(self, sync_calls: Calls) -> None:
        async def handler(_key: str) -> None:
            await asyncio.sleep(5)

        tasks = [asyncio.create_task(sync_calls.call(key, handler)) for key in ("shop", "bank")]
        await asyncio.sleep(1)
        assert [str(sync_in(task, 0)) for task in tasks] == ["apps: shop", "apps: bank"]
        await asyncio.wait(tasks)
        assert sync_in(tasks[0], 0) is None


class TestDelays:
    @pytest.mark.parametrize(
        ("value", "delay_s"), [(None, None), (0, None), (0.0, None), (3, 3.0), (0.5, 0.5)]
    )
    def test_seconds_are_a_delay(self, value: object, delay_s: float | None) -> None:
        assert delay_of(value, "sync_handler") == delay_s

    @pytest.mark.parametrize("value", [-1, math.nan, math.inf, 1e300])
    def test_a_call_that_returns_an_invalid_number_has_failed(self, value: float) -> None:
        with pytest.raises(
            HandlerError, match=r"return seconds or None \(a number from 0 to less than 1e"
        ):
            delay_of(value, "sync_handler")

    @pytest.mark.parametrize("value", [True, "soon", object()])
    def test_a_call_that_returns_no_number_has_failed(self, value: object) -> None:
        with pytest.raises(HandlerError, match=r"return seconds or None$"):
            delay_of(value, "sync_handler")

    def test_a_coroutine_that_was_not_awaited_is_closed(self) -> None:
        async def handler() -> None:
            """Return at once."""

        work = handler()
        with pytest.raises(HandlerError):
            delay_of(work, "sync_handler")
        with pytest.raises(RuntimeError, match="reuse"):
            work.send(None)


class TestShown:
    def test_a_long_value_is_shortened(self) -> None:
        assert shown("x" * 1000) == f"'{'x' * (SHOWN_MAX - 1)}…"

    def test_a_secret_is_hidden(self) -> None:
        assert "hunter2" not in shown("nats://joe:hunter2@host")

    def test_a_value_that_cannot_be_shown_has_its_type(self) -> None:
        broken = type("list", (), {})()  # looks like a list, and has no length
        assert shown(broken) == "a value of type list"


class TestHooks:
    async def test_a_hook_is_awaited(self) -> None:
        done: list[str] = []

        async def start() -> None:
            done.append("start")

        await call_hook("apps", start)
        assert done == ["start"]

    async def test_an_expected_error_is_raised_as_it_is(self) -> None:
        async def start() -> None:
            raise UsageError("no such option")

        with pytest.raises(UsageError, match="no such option"):
            await call_hook("apps", start)

    async def test_another_error_names_the_hook_and_its_line(self) -> None:
        async def start() -> None:
            raise KeyError("missing")

        with pytest.raises(HandlerError, match=r"(?s)apps: start\(\) failed: .*missing"):
            await call_hook("apps", start)

    async def test_a_cancelled_hook_is_cancelled(self) -> None:
        async def start() -> None:
            await asyncio.sleep(5)

        running = asyncio.create_task(call_hook("apps", start))
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.wait((running,))
        assert running.cancelled()

    def test_a_function_that_returns_no_awaitable_has_failed(self) -> None:
        def clean() -> Any:
            return None

        with pytest.raises(HandlerError, match="clean returned None at once"):
            awaitable(clean)


class TestBlocking:
    async def test_a_function_runs_in_a_thread(self) -> None:
        assert await blocking(divmod, 7, 2) == (3, 1)

    async def test_a_call_ends_after_its_threads(self, sync_calls: Calls) -> None:
        released, ended = threading.Event(), list[str]()

        def work() -> None:
            released.wait()
            ended.append("thread")

        async def handler(_key: str) -> None:
            asyncio.create_task(blocking(work))  # noqa: RUF006 - the call waits
            await asyncio.sleep(0)

        call = asyncio.create_task(sync_calls.call("shop", handler))
        try:
            for _ in range(10):
                await asyncio.sleep(0)
            assert not call.done()
        finally:
            released.set()
        await call
        assert ended == ["thread"]

    async def test_a_coroutine_function_is_refused(self) -> None:
        async def fetch() -> None:
            pytest.fail("it was called")

        with pytest.raises(UsageError, match="fetch is `async def`: await it"):
            _ = await blocking(fetch)

    async def test_a_task_that_outlives_its_handler_is_refused(self, sync_calls: Calls) -> None:
        tasks: list[asyncio.Task[str]] = []

        async def late() -> str:
            await asyncio.sleep(1)
            return await blocking(str)

        async def handler(_key: str) -> None:
            tasks.append(asyncio.create_task(late()))

        await sync_calls.call("shop", handler)
        with pytest.raises(UsageError, match="the handler has returned, so its key is free"):
            await tasks[0]

    async def test_only_a_safe_function_runs_in_a_plan(self) -> None:
        token = current_plan.set(PlanRecord(lambda: ""))
        assert await blocking(divmod, 7, 2, safe=True) == (3, 1)
        with pytest.raises(PlanningError, match="divmod runs in a thread"):
            await blocking(divmod, 7, 2)
        current_plan.reset(token)


async def test_only_the_calls_of_a_stuck_controller_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(_key: str) -> None:
        await asyncio.Event().wait()

    tasks = []
    for owner in ("apps", "sites"):
        owned = Calls(owner, "sync_handler", limit_s=10, setting="sync_timeout_s")
        tasks.append(asyncio.create_task(owned.call("shop", handler)))
    await asyncio.sleep(1)
    report_stuck("apps")
    assert len(caplog.messages) == 1
    assert "controller=apps key=shop cause=stop" in caplog.messages[0]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
