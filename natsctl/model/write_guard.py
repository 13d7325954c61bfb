"""Decides which writes a process may send, and whether the server stores them."""

import copy
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

from natsctl.errors import NotStoredError
from natsctl.model.kinds import Kind, KvKind

T = TypeVar("T")


class WriteGuard:
    """Permits every write; subclasses forbid some.

    `Stores.guarded` returns stores that check the guard before they send a write. Reads and watches
    are always permitted.

    Attributes:
        dry_run: the server only checks each write, if it can.
    """

    dry_run = False

    def check(self, kind: Kind[Any] | None) -> None:
        """Raise a `StoreError` if a write of an object of this kind may not be sent now.

        *kind* is None for a request to the JetStream API that changes something.
        """

    def send(self, kind: Kind[Any] | None, write: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Call *write*, which may wait before it sends something, and return its result.

        Raises what `check` raises. A subclass that forbids writes after a while cancels *write*
        instead of letting it go on after that.
        """
        self.check(kind)
        return write()

    def may_record(self, key: str) -> bool:  # noqa: ARG002 - every key
        """Return whether events about this key of the controller may be recorded now."""
        return True

    def may_create(self, kind: KvKind[Any]) -> bool:  # noqa: ARG002 - every kind
        """Return whether the bucket of this kind may be created if it doesn't exist."""
        return True


class DryRunGuard(WriteGuard):
    """Stores nothing: a cluster checks each write, and a write to NATS raises `NotStoredError`."""

    dry_run = True

    def check(self, kind: Kind[Any] | None) -> None:
        """See `WriteGuard.check`; raises `NotStoredError`."""
        name = "the JetStream API" if kind is None else kind.name
        raise NotStoredError(f"a plan writes nothing to {name}")

    async def send(self, kind: Kind[Any] | None, write: Callable[[], Awaitable[T]]) -> T:  # noqa: ARG002 - every kind
        """See `WriteGuard.send`; the server checks the write, and stores nothing."""
        return await write()

    def may_record(self, key: str) -> bool:  # noqa: ARG002 - no key
        return False

    def may_create(self, kind: KvKind[Any]) -> bool:  # noqa: ARG002 - no kind
        return False


UNGUARDED = WriteGuard()
DRY_RUN = DryRunGuard()


class Guarded:
    """A system or a recorder that asks its `guard` before each write."""

    guard: WriteGuard = UNGUARDED

    def guarded(self, guard: WriteGuard) -> Self:
        """Return this system with *guard* instead of its present guard; see `Stores.guarded`."""
        guarded = copy.copy(self)
        guarded.guard = guard
        return guarded
