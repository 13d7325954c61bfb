"""One run of a user's code for a key: what it's about, what it wrote, and where it is."""

import asyncio
import inspect
import math
import threading
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Iterator,
)
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar, Token, copy_context
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self, TypeVar

import msgspec

from natsctl.core.environment import environment, planning
from natsctl.core.record.document import Delivery
from natsctl.core.record.recordings import states_of
from natsctl.core.tape import OutsideStep, StoreStep, Tape
from natsctl.errors import (
    DELAY_MAX_S,
    HandlerError,
    PlanningError,
    SyncTimeoutError,
    UsageError,
    is_delay,
)
from natsctl.model.manifests import Reference
from natsctl.model.masking import secrets_in
from natsctl.model.store import Stored
from natsctl.telemetry.exceptions import (
    ErrorClass,
    classify,
    coroutine_frames,
    explained_error,
    thread_frames,
    user_frames_text,
)
from natsctl.telemetry.hiding import error_text, learn_from, shown
from natsctl.telemetry.logger import current, get_logger
from natsctl.time_limit import IGNORED_S, TimeLimit

T = TypeVar("T")

THREADS_MAX = 64  # in one process

_pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="natsctl-blocking")


class Threads:
    """The threads of one call of a handler that have not ended."""

    __slots__ = ("_jobs",)

    def __init__(self) -> None:
        self._jobs: dict[asyncio.Future[Any], list[int]] = {}  # each with its thread, if it has one

    def __bool__(self) -> bool:
        return bool(self._jobs)

    async def run(self, function: Callable[[], T]) -> T:
        """Run the function in a thread, and return or raise its result.

        A thread cannot be stopped, so a cancellation takes effect when the thread has ended. If the
        function is still waiting for a free thread, it never starts, and the cancellation takes
        effect at once.
        """
        turn, context, thread = Future[None](), copy_context(), list[int]()

        def work() -> T:
            if not turn.set_running_or_notify_cancel():
                raise asyncio.CancelledError  # the caller is gone
            thread.append(threading.get_ident())
            try:
                return context.run(function)
            except StopIteration as error:  # a future cannot hold it
                raise RuntimeError("the function raised StopIteration") from error

        future = asyncio.get_running_loop().run_in_executor(_pool, work)
        self._jobs[future] = thread
        future.add_done_callback(lambda _: self._jobs.pop(future, None))
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait((future,))
            except asyncio.CancelledError as error:
                if turn.cancel():
                    del self._jobs[future]
                    future.cancel()
                    raise
                cancelled = error
        if cancelled is not None:
            future.exception()  # mark it as retrieved
            raise cancelled
        return future.result()

    async def ended(self) -> None:
        """Wait until every thread has ended; a cancellation takes effect then."""
        cancelled: asyncio.CancelledError | None = None
        while self._jobs:
            try:
                await asyncio.wait(list(self._jobs))
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def stack(self) -> str:
        """Return the frames of the user's code that the threads run; empty if there are none."""
        stacks = (
            user_frames_text(thread_frames(thread[0] if thread else 0))
            for thread in self._jobs.values()
        )
        return "\n".join(filter(None, stacks))


Task = asyncio.Task[Any]


class Sync(msgspec.Struct, eq=False):
    """One run of a user's code for `key`, by the controller `owner`.

    Within `with Sync(key):`, reads and writes belong to this sync, and so do those of tasks that
    the handler creates.

    Attributes:
        operation: the reason for the sync.
        started_s: the time of its start, in seconds since 1970.
        begun: the same by the event loop's clock.
        stored: the object as the sync began; None if it did not exist.
        last: the last state of a deleted object.
        table: the table that `stored` is from, if nothing has run since then.
        handler: the name of the handler, if several handlers get the key.
        delivery: the change that a watcher or a stream gets, or the call of a reconciler.
        generation: that of the key's object, as the handler has read it.
        touched: the objects in a cluster that the sync wrote.
        tape: takes notes of its reads.
        missing: the incarnation of the bucket that lacks the object, as garbage collection found.
        read: the dependencies that the handler has read so far; None if it has read none.
        work: the coroutine of the handler.
        task: None while the first step of the handler runs.
        over: whether the handler has returned, so that the key is free.
    """

    key: str
    owner: str = ""
    operation: str = ""
    started_s: float = 0.0
    begun: float = 0.0
    stored: Stored | None = None
    last: Stored | None = None
    table: object = None
    failures: Callable[[Any], int] | None = None  # of the key in a row before this sync
    thread: int = 0
    handler: str = ""
    delivery: Any = None
    generation: int = 0
    created: int = 0
    updated: int = 0
    deleted: int = 0
    touched: tuple[Reference, ...] = ()
    tape: Tape | None = None
    missing: str | None = None
    read: set[Any] | None = None
    work: Awaitable[object] | None = None
    task: Task | None = None
    over: bool = False
    _threads: Threads | None = None  # made on first use
    _token: "Token[Sync | None] | None" = None

    def __str__(self) -> str:
        return f"{self.owner}: {self.key}"

    def __enter__(self) -> Self:
        self._token = current_sync.set(self)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._token is not None:
            current_sync.reset(self._token)
            self._token = None

    def begin_call(self) -> None:
        self.thread = threading.get_ident()
        running[self] = None

    def end_call(self) -> None:
        self.over = True
        running.pop(self, None)

    @property
    def manual(self) -> bool:
        return self.operation == "manual"

    @property
    def started(self) -> datetime:
        return datetime.fromtimestamp(self.started_s, UTC)

    @property
    def threads(self) -> Threads:
        """The threads that the handler started with `blocking`."""
        if self._threads is None:
            self._threads = Threads()
        return self._threads

    @property
    def has_threads(self) -> bool:
        return bool(self._threads)

    def stack(self) -> str:
        """Return the frames of the user's code in which the handler and its threads are."""
        runs = getattr(self.work, "cr_running", False)
        frames = thread_frames(self.thread) if runs else coroutine_frames(self.work)
        stacks = (user_frames_text(frames), self.threads.stack())
        return "\n".join(filter(None, stacks)) or "  (in no file of the user)"

    def mapping(self) -> dict[str, object]:
        """Return the fields of the sync's log lines; of other syncs, the loop knows them."""
        if self.failures is None:
            return {}
        fields = {"key": self.key, "attempt": self.failures(self.key) + 1}
        return {**fields, "operation": self.operation} if self.operation else fields

    def count_writes(self) -> None:
        """Count the successful writes that the tape has, for a handler that writes to stores."""
        for step in self.tape or ():
            if isinstance(step, StoreStep) and step.error is None:
                self.created += step.verb == "create"
                self.updated += step.verb in {"update", "apply", "patch_status"}
                self.deleted += step.verb == "delete"

    def named(self, text: str) -> str:
        return f"{self.handler}: {text}" if self.handler else text


current_sync: ContextVar[Sync | None] = current  # type: ignore[assignment]  # only syncs are in it
"""The sync that the current task belongs to; a task inherits it from its creator."""

running: dict[Sync, None] = {}
"""The runs of users' code that have not ended in this process, the oldest first."""


def current_tape() -> Tape | None:
    """Return the tape of the current sync, None if nothing is noted."""
    sync = current_sync.get()
    return None if sync is None else sync.tape


def secrets_read() -> Collection[str]:
    """Return the secrets in what the sync of this task has read, and in its object."""
    sync = current_sync.get()
    if sync is None:
        return ()
    change, states = sync.delivery, [sync.stored, sync.last]
    if isinstance(change, Delivery):
        states += (change.before, change.after)
    values = [stored.value for stored in states if stored is not None]
    for step in sync.tape or ():
        values += (stored.value for stored in states_of(step))
        if isinstance(step, StoreStep):
            values.append(bytes(step.value))
        elif isinstance(step, OutsideStep):
            values.append(bytes(step.result))
    return secrets_in(values)


learn_from(secrets_read)


def sync_in(task: Task, thread: int) -> Sync | None:
    """Return the innermost sync that the task runs, if it is known; *thread* runs its loop."""
    for sync in reversed(list(running)):
        if sync.task is task or (sync.task is None and sync.thread == thread):
            return sync
    return None


_supervisor: ContextVar[Task | None] = ContextVar("supervisor", default=None)
"""The task whose task group has the present worker."""


@contextmanager
def supervising() -> Iterator[None]:
    """Declare that natsctl cancels the tasks that the context creates only with this task.

    The group of these tasks cancels its own task too if one of them fails.
    """
    token = _supervisor.set(asyncio.current_task())
    try:
        yield
    finally:
        _supervisor.reset(token)


def is_ordered_to_end(task: Task) -> bool:
    """Return whether the task was cancelled, and not only by the code that it calls."""
    if not task.cancelling():
        return False
    supervisor = _supervisor.get()
    return supervisor is None or bool(supervisor.cancelling())


async def outlives(task: Task) -> bool:
    """Forget the cancellations of the present task by the code that it called.

    Returns False if the task is ordered to end.
    """
    if is_ordered_to_end(task):
        return False
    while task.uncancel():
        pass
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # raises a cancellation that no await has raised yet
    return not is_ordered_to_end(task)


async def outside(name: str, call: Callable[[], Awaitable[T]]) -> T:
    """Make a call outside of the stores; a replay returns its recorded result, or error."""
    tape = current_tape()
    return await (call() if tape is None else tape.outside(name, call))


log = get_logger(__name__)

K = TypeVar("K", bound=Hashable)


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
            with Sync(str(key), self._owner):
                return await self.call(key, function)
        sync.owner, sync.work = self._owner, (work := awaitable(function, key))
        sync.begin_call()
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


async def awaitable(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Call a user's function, and await its result; raises `HandlerError` if that's impossible."""
    work = function(*args)
    if inspect.isawaitable(work):
        return await work
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
        leadership = environment().leadership
        over = leadership is not None and not leadership.leads
        if task is None or over or is_ordered_to_end(task):
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
    number = isinstance(value, int | float) and not isinstance(value, bool)
    hint = f" (a number from 0 to less than {DELAY_MAX_S:g})" if number else ""
    raise HandlerError(f"{handler} returned {shown(value)}: return seconds or None{hint}")


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


def _current_task() -> Task | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs
        return None
