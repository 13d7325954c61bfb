"""Calls a user's code for one key, so that its faults affect only that key."""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ParamSpec, TypeVar

from natsctl.core.coordination.term import leading
from natsctl.core.objects.sync import Sync, current_sync, running
from natsctl.core.objects.threads import Threads
from natsctl.core.planning.record import planning
from natsctl.core.recording.outside import outside
from natsctl.core.sync.cancellation import is_ordered_to_end
from natsctl.errors import (
    DELAY_MAX_S,
    HandlerError,
    PlanningError,
    SyncTimeoutError,
    UsageError,
    is_delay,
)
from natsctl.telemetry.classification import ErrorClass, classify
from natsctl.telemetry.frames import (
    explained_error,
)
from natsctl.telemetry.hiding import error_text, shown
from natsctl.telemetry.logger import get_logger
from natsctl.time_limit import IGNORED_S, TimeLimit

log = get_logger(__name__)

K = TypeVar("K", bound=Hashable)
P = ParamSpec("P")
T = TypeVar("T")

Task = asyncio.Task[Any]


class Calls:
    """Calls a user's code for keys.

    *Guarantees.* `call` ends only when the code and every thread that it started with `blocking`
    have ended. It returns the result of the code, or raises an `Exception`; any other exception of
    the code is converted. `CancelledError` is raised only if the call was cancelled from outside.

    Args:
        owner: the name of the controller.
        handler: the name of the code in messages, such as `sync_handler`.
        limit_s: how long a call may take; by default there is no limit.
        call_name: the name of a call in messages, such as `sync`.
        setting: the name of the option that sets *limit_s*.
    """

    def __init__(
        self,
        owner: str,
        handler: str,
        *,
        limit_s: float = math.inf,
        call_name: str = "sync",
        setting: str = "",
    ) -> None:
        self._owner = owner
        self._handler = handler
        self._limit: AbstractContextManager[None] = nullcontext()
        if limit_s < math.inf:
            message = f"{call_name} took longer than {limit_s:g} s ({setting})"
            error = partial(SyncTimeoutError, message)
            self._limit = TimeLimit(limit_s, error=error, on_ignored=_report_ignored)

    async def call(self, key: K, function: Callable[[K], Awaitable[T]]) -> T:
        """Call the function with the key, in the current sync or in a new one."""
        sync = current_sync.get()
        if sync is None or sync.over or sync.work is not None:
            with Sync(str(key), self._owner) as sync:
                return await self._call(sync, key, function)
        sync.owner = self._owner
        return await self._call(sync, key, function)

    async def _call(self, sync: Sync, key: K, function: Callable[[K], Awaitable[T]]) -> T:
        sync.begin_call()
        try:
            work = sync.work = awaitable(function, key)
        except BaseException as error:  # noqa: BLE001 - raised again
            sync.end_call()
            raise failed_by(error, _current_task()) from error.__cause__
        return await self.finish(sync, work)

    async def finish(self, sync: Sync, work: Awaitable[T]) -> T:
        """Wait within the time limit until the work of a sync and its threads have ended."""
        sync.task = _current_task()
        try:
            with self._limit:
                try:
                    return await work
                finally:
                    if sync.has_threads:
                        await sync.threads.ended()
        except BaseException as error:  # noqa: BLE001 - raised again
            raise failed_by(error, sync.task)  # noqa: B904 - it has its cause
        finally:
            sync.end_call()

    async def delay(self, key: K, function: Callable[[K], Awaitable[object]]) -> float | None:
        """Call the function with the key; return the delay that it returns, see `delay_of`."""
        return delay_of(await self.call(key, function), self._handler)


def current_key() -> str:
    """Return the key that is being synced, as text; empty outside of a sync."""
    sync = current_sync.get()
    return "" if sync is None else sync.key


async def blocking(function: Callable[..., T], *args: Any, safe: bool = False) -> T:
    """Run a function that blocks in a thread, and return or raise its result.

    The key of the sync stays held until the thread has ended, even if the sync times out or is
    cancelled. A process has at most `THREADS_MAX` such threads; further functions wait.

    With *safe*, the function changes nothing, so it also runs in a plan.

    Raises `UsageError` for an `async def` function, and in a task that outlives its handler, since
    the key is not held any more. Raises `PlanningError` in a plan, unless the function is *safe*.
    """
    if planning() and not safe:
        name = getattr(function, "__qualname__", repr(function))
        raise PlanningError(
            f"{name} runs in a thread, and may change something: call `blocking` with safe=True "
            "if it changes nothing, or skip the call if natsctl.planning()"
        )
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"{function.__qualname__} is `async def`: await it, it needs no thread")
    name = getattr(function, "__qualname__", repr(function))
    return await outside(name, lambda: _in_thread(partial(function, *args)))


async def _in_thread(function: Callable[[], T]) -> T:
    sync = current_sync.get()
    if sync is None:
        return await Threads().run(function)
    if sync.over:
        raise UsageError(
            f"{sync}: the handler has returned, so its key is free: await every task in the handler"
        )
    return await sync.threads.run(function)


def awaitable(
    function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
) -> Awaitable[T]:
    """Call a user's function; raises `HandlerError` if its result cannot be awaited."""
    return _checked(function(*args, **kwargs), function)


async def awaited(work: Awaitable[T], function: Callable[..., object]) -> T:
    """Await what a user's function returned; raises `HandlerError` if it cannot be awaited."""
    return await _checked(work, function)


def _checked(work: Awaitable[T], function: Callable[..., object]) -> Awaitable[T]:
    """Return the result of a user's function; raises `HandlerError` if it cannot be awaited."""
    if inspect.isawaitable(work):
        return work
    name = getattr(function, "__qualname__", repr(function))
    raise HandlerError(f"{name} returned {shown(work)} at once: write it with `async def`")


async def call_hook(owner: str, hook: Callable[[], Awaitable[None]]) -> None:
    """Call a user's `start` or `clean`.

    Raises an expected error as it is, and `HandlerError` with the frames of the user's code for
    any other error.
    """
    try:
        await awaitable(hook)
    except BaseException as error:
        failure = failure_of(error, _current_task())
        if failure is None:
            raise
        if classify(failure) is not ErrorClass.UNEXPECTED:
            raise failure from error.__cause__
        name = getattr(hook, "__name__", repr(hook))
        raise HandlerError(f"{owner}: {name}() failed: {explained_error(error)}") from error


def failure_of(error: BaseException, task: Task | None) -> Exception | None:
    """Convert an exception that the user's code raised in this task to an `Exception`.

    Returns None if the code was cancelled from outside. The caller must then raise *error* again.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, asyncio.CancelledError):
        if task is None or is_ordered_to_end(task) or not leading():
            return None
        if task.cancelling():
            return RuntimeError("the handler cancelled the task that runs it")
        return RuntimeError("the handler waited for something that was cancelled")
    if isinstance(error, GeneratorExit) and _current_task() is not task:
        return None  # the coroutine is closed, and does not run
    return RuntimeError(f"the handler raised {error_text(error)}")


def failed_by(error: BaseException, task: Task | None) -> BaseException:
    """Return the present exception of a user's code as an `Exception`, see `failure_of`.

    Returns the error as it is if the code was cancelled from outside.
    """
    failure = failure_of(error, task)
    if failure is None or failure is error:
        return error
    failure.__cause__ = error
    return failure


def delay_of(value: object, handler: str) -> float | None:
    """Return a handler's result as the seconds until the next sync, or None.

    Zero means None, as in controller-runtime. Raises `HandlerError` if the result is not a number
    of seconds.
    """
    if value is None:
        return None
    if is_delay(value):
        return float(value) or None  # type: ignore[arg-type]  # a number
    if inspect.iscoroutine(value):
        value.close()
    raise HandlerError(
        f"{handler} returned {shown(value)}: return seconds or None{_number_hint(value)}"
    )


def report_stuck(owner: str) -> None:
    """Log every call of this controller that has not ended although it was cancelled."""
    for sync in list(running):
        if sync.owner == owner:
            _log_ignored(sync, "stop")


def _report_ignored(task: Task) -> None:
    sync = next((sync for sync in reversed(running) if sync.task is task), None)
    if sync is not None:
        _log_ignored(sync, "time limit")


def _log_ignored(sync: Sync, cause: str) -> None:
    """Log a call that has not ended `IGNORED_S` seconds after it was cancelled by *cause*."""
    log.error(
        "a call did not end after its cancellation; its key stays held",
        controller=sync.owner,
        key=sync.key,
        cause=cause,
        cancelled_s=IGNORED_S,
        waits_for="a thread, which cannot be stopped" if sync.has_threads else None,
        stack=sync.stack(),
    )


def _number_hint(value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f" (a number from 0 to less than {DELAY_MAX_S:g})" if number else ""


def _current_task() -> Task | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs
        return None
