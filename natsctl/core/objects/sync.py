"""One run of a user's code for a key: what it's about, what it wrote, and where it is."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from typing import Any, Self

import msgspec

from natsctl.core.objects.tape import StoreCall, Tape
from natsctl.core.objects.threads import Threads
from natsctl.model.manifests import Reference
from natsctl.model.store import Stored
from natsctl.telemetry.frames import coroutine_frames, thread_frames, user_frames_text

Task = asyncio.Task[Any]

_EMPTY: Mapping[str, object] = {}


class Sync(msgspec.Struct, eq=False):
    """One run of a user's code for `key`, by the controller `owner`.

    Within `with Sync(key):`, reads and writes belong to this sync, and so do those of tasks that
    the handler creates. While it's the log context too, `mapping` returns the fields of log lines.

    Attributes:
        operation: the reason for the sync.
        started_s: the time of its start, in seconds since 1970.
        begun: the same by the event loop's clock.
        stored: the object as the sync began; None if it did not exist.
        last: the last state of a deleted object.
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
    outer: Mapping[str, object] = _EMPTY  # of the log context
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
        """Note that the user's code begins."""
        self.thread = threading.get_ident()
        running[self] = None

    def end_call(self) -> None:
        """Note that the user's code has ended."""
        self.over = True
        running.pop(self, None)

    @property
    def manual(self) -> bool:
        """True if a person requested the sync."""
        return self.operation == "manual"

    @property
    def started(self) -> datetime:
        """The time of its start."""
        return datetime.fromtimestamp(self.started_s, UTC)

    @property
    def threads(self) -> Threads:
        """The threads that the handler started with `blocking`."""
        if self._threads is None:
            self._threads = Threads()
        return self._threads

    @property
    def has_threads(self) -> bool:
        """True while one of its threads has not ended."""
        return bool(self._threads)

    def stack(self) -> str:
        """Return the frames of the user's code in which the handler and its threads are."""
        runs = getattr(self.work, "cr_running", False)
        frames = thread_frames(self.thread) if runs else coroutine_frames(self.work)
        stacks = (user_frames_text(frames), self.threads.stack())
        return "\n".join(filter(None, stacks)) or "  (in no file of the user)"

    def mapping(self) -> dict[str, object]:
        """Return the fields of the sync's log lines."""
        attempt = 1 if self.failures is None else self.failures(self.key) + 1
        fields = {**self.outer, "key": self.key, "attempt": attempt}
        return {**fields, "operation": self.operation} if self.operation else fields

    def count_writes(self) -> None:
        """Count the successful writes that the tape has, for a handler that writes to stores."""
        for note in self.tape if isinstance(self.tape, list) else ():
            if isinstance(note, StoreCall) and note.error is None:
                self.created += note.verb == "create"
                self.updated += note.verb in {"update", "apply", "patch_status"}
                self.deleted += note.verb == "delete"

    def named(self, text: str) -> str:
        """Return a text about the sync with the name of its handler."""
        return f"{self.handler}: {text}" if self.handler else text


current_sync: ContextVar[Sync | None] = ContextVar("current_sync", default=None)
"""The sync that the current task belongs to; a task inherits it from its creator."""

running: dict[Sync, None] = {}
"""The runs of users' code that have not ended in this process, the oldest first."""


def current_tape() -> Tape | None:
    """Return the tape of the current sync, None if nothing is noted."""
    sync = current_sync.get()
    return None if sync is None else sync.tape


def sync_in(task: Task, thread: int) -> Sync | None:
    """Return the innermost sync that the task runs, if it is known; *thread* runs its loop."""
    for sync in reversed(list(running)):
        if sync.task is task or (sync.task is None and sync.thread == thread):
            return sync
    return None
