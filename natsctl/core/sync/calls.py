"""Calls a user's code for one key, so that its faults affect only that key."""

import asyncio
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from functools import partial
from types import CoroutineType
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

import msgspec

from natsctl.core.coordination.term import leading
from natsctl.core.objects.read_your_writes import current_sync
from natsctl.core.planning.record import planning
from natsctl.core.recording.outside import outside
from natsctl.core.sync.cancellation import is_ordered_to_end
from natsctl.core.sync.steps import Rest, first_step
from natsctl.core.sync.threads import Threads
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
    coroutine_frames,
    explained_error,
    thread_frames,
    user_frames_text,
)
from natsctl.telemetry.hiding import error_text, shown
from natsctl.telemetry.logger import get_logger
from natsctl.time_limit import IGNORED_S, TimeLimit

log = get_logger(__name__)

K = TypeVar("K", bound=Hashable)
P = ParamSpec("P")
T = TypeVar("T")

Task = asyncio.Task[Any]


class Call(msgspec.Struct, eq=False):
    """A call of a user's code for `key`, by the controller `owner`.

    `task` is None while the first step of the call runs. `over` is set when the call has ended.
    """

    owner: str
    key: Hashable
    work: Awaitable[object] | None = None
    over: bool = False
    task: Task | None = None
    thread: int = msgspec.field(default_factory=threading.get_ident)
    _threads: Threads | None = None  # made on first use
    _token: "Token[Call | None] | None" = None

    @property
    def threads(self) -> Threads:
        """The threads that the call started with `blocking`."""
        if self._threads is None:
            self._threads = Threads()
        return self._threads

    @property
    def has_threads(self) -> bool:
        """True while one of its threads has not ended."""
        return bool(self._threads)

    def begin(self) -> None:
        """Make this the current call."""
        self._token = current_call.set(self)
        calls[self] = None

    def end(self) -> None:
        """End the call, and restore the call before it."""
        self.over = True
        calls.pop(self, None)
        if self._token is not None:
            current_call.reset(self._token)
            self._token = None

    def __str__(self) -> str:
        return f"{self.owner}: {self.key}"

    def stack(self) -> str:
        """Return the frames of the user's code in which the call and its threads are."""
        runs = getattr(self.work, "cr_running", False)
        frames = thread_frames(self.thread) if runs else coroutine_frames(self.work)
        stacks = (user_frames_text(frames), self.threads.stack())
        return "\n".join(filter(None, stacks)) or "  (in no file of the user)"


current_call: ContextVar[Call | None] = ContextVar("current_call", default=None)
"""The call that the current task belongs to; a task inherits it from its creator."""

calls: dict[Call, None] = {}
"""The calls that have not ended in this process, the oldest first."""


def call_in(task: Task, thread: int) -> Call | None:
    """Return the innermost call that the task makes, if it is known; *thread* runs its loop."""
    for call in reversed(list(calls)):
        if call.task is task or (call.task is None and call.thread == thread):
            return call
    return None


class Unfinished(Generic[T]):
    """The rest of a call that waits; await it at once, in the task that began the call."""

    __slots__ = ("_rest",)

    def __init__(self, rest: Coroutine[Any, Any, T]) -> None:
        self._rest = rest

    def __await__(self) -> Generator[Any, Any, T]:
        """Return the result of the call."""
        return self._rest.__await__()


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

    def start(self, key: K, function: Callable[[K], Awaitable[T]]) -> T | Unfinished[T]:
        """Call the function with the key; return its result, or the rest of a call that waits.

        Most calls end with their first step, without waiting for anything. Such a call needs no
        time limit, because nothing can cancel it, and it has started no thread.
        """
        call = Call(self._owner, key)
        call.begin()
        try:
            work = function(key)
            if type(work) is not CoroutineType:
                work = _checked(work, function)
            call.work = work
            step: T | Rest[T] = first_step(work)
        except BaseException as error:  # noqa: BLE001 - raised again
            call.end()
            _raise_failure(error, _current_task())
        if isinstance(step, Rest):
            return Unfinished(self._finish(call, step))
        call.end()
        return step

    async def call(self, key: K, function: Callable[[K], Awaitable[T]]) -> T:
        """Call the function with the key, and return its result."""
        step = self.start(key, function)
        return await step if isinstance(step, Unfinished) else step

    async def _finish(self, call: Call, rest: Rest[T]) -> T:
        """Wait within the time limit until the rest of the call and its threads have ended."""
        call.task = _current_task()
        try:
            with self._limit:
                try:
                    return await rest
                finally:
                    if call.has_threads:
                        await call.threads.ended()
        except BaseException as error:  # noqa: BLE001 - raised again
            _raise_failure(error, call.task)
        finally:
            call.end()

    async def delay(self, key: K, function: Callable[[K], Awaitable[object]]) -> float | None:
        """Call the function with the key; return the delay that it returns, see `delay_of`."""
        return delay_of(await self.call(key, function), self._handler)


def current_key() -> str:
    """Return the key that is being synced, as text; empty outside of a sync."""
    sync, call = current_sync.get(), current_call.get()
    if sync is not None:
        return sync.key
    return "" if call is None else str(call.key)


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
    call = current_call.get()
    if call is None:
        return await Threads().run(function)
    if call.over:
        raise UsageError(
            f"{call}: the handler has returned, so its key is free: await every task in the handler"
        )
    return await call.threads.run(function)


def awaitable(
    function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
) -> Awaitable[T]:
    """Call a user's function; raises `HandlerError` if its result cannot be awaited."""
    return _checked(function(*args, **kwargs), function)


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


def _raise_failure(error: BaseException, task: Task | None) -> NoReturn:
    """Raise the error of a user's code, which is the present exception, as an `Exception`.

    The error is raised as it is if the code was cancelled from outside.
    """
    failure = failure_of(error, task)
    if failure is None or failure is error:
        raise error
    raise failure from error


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
    for call in list(calls):
        if call.owner == owner:
            _log_ignored(call, "stop")


def _report_ignored(task: Task) -> None:
    call = next((call for call in reversed(calls) if call.task is task), None)
    if call is not None:
        _log_ignored(call, "time limit")


def _log_ignored(call: Call, cause: str) -> None:
    """Log a call that has not ended `IGNORED_S` seconds after it was cancelled by *cause*."""
    log.error(
        "a call did not end after its cancellation; its key stays held",
        controller=call.owner,
        key=str(call.key),
        cause=cause,
        cancelled_s=IGNORED_S,
        waits_for="a thread, which cannot be stopped" if call.has_threads else None,
        stack=call.stack(),
    )


def _number_hint(value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f" (a number from 0 to less than {DELAY_MAX_S:g})" if number else ""


def _current_task() -> Task | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs
        return None
