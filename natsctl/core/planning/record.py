"""Records the writes of a plan, by the key whose sync made them."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from natsctl.core.planning.diff import actions_of, shown_values
from natsctl.errors import RetryAfter
from natsctl.model.kinds import Kind
from natsctl.model.plan import Action, KeyPlan, PlanSummary
from natsctl.telemetry.hiding import error_text

ExternalCall = Literal["create", "update", "delete"]


class _Write(msgspec.Struct):
    """The first state and the last state of an object that a key's syncs wrote."""

    kind: Kind[Any]
    before: bytes | None
    after: bytes | None
    reason: str | UnsetType


class PlannedChange(msgspec.Struct, frozen=True):
    """An object before and after the writes of a key's syncs, as JSON values without secrets.

    A value is None if the object does not exist.
    """

    kind: str
    key: str
    before: Any
    after: Any


class _KeyRecord:
    """The writes of one key's syncs, and the result of its last sync."""

    __slots__ = ("after_s", "error", "external", "failed_at", "writes")

    def __init__(self) -> None:
        self.writes: dict[tuple[str, str], _Write] = {}  # by kind and key
        self.external: dict[tuple[str, str], ExternalCall] = {}
        self.error = ""
        self.after_s: float | None = None
        self.failed_at = 0  # the number of writes when the sync failed

    @property
    def plan(self) -> KeyPlan:
        actions = [
            action
            for (_, key), write in self.writes.items()
            for action in actions_of(write.kind, key, write.before, write.after, write.reason)
        ]
        actions += [
            Action(action="external", kind=kind, key=key, call=call)
            for (kind, key), call in self.external.items()
        ]
        return KeyPlan(error=self.error, after_s=self.after_s, actions=tuple(actions))


class PlanRecord:
    """The writes and the results of all syncs of a plan.

    Args:
        key_of: returns the key of the sync that runs now, as text; empty outside of a sync.
        retries: whether sync loops retry failed keys themselves, see `to_retry`.
    """

    def __init__(self, key_of: Callable[[], str], *, retries: bool = False) -> None:
        self.retries = retries
        self.syncs = 0
        self.version = 0  # grows with every write
        self._key_of = key_of
        self._keys: dict[str, _KeyRecord] = {}  # that wrote, failed, or ask to come back
        self._quiet: set[str] = set()  # keys without any of that

    # ---- what happens

    def wrote(self, kind: Kind[Any], key: str, before: bytes | None, after: bytes | None) -> None:
        """Record that the present sync changed an object."""
        self.version += 1
        writes = self._record(self._key_of()).writes
        known = writes.pop((kind.name, key), None)
        first = before if known is None else known.before
        writes[kind.name, key] = _Write(kind, first, after, _reason.get())

    def called(self, kind: Kind[Any], key: str, call: ExternalCall) -> None:
        """Record that the present sync would change the external resource of an object."""
        self._record(self._key_of()).external[kind.name, key] = call

    def synced(self, key: Hashable, after_s: float | None) -> None:
        """Record a successful sync."""
        self.syncs += 1
        name = str(key)
        if after_s is None and name not in self._keys:
            self._quiet.add(name)
            return
        record = self._record(name)
        record.error, record.after_s = "", after_s

    def failed(self, key: Hashable, error: Exception) -> None:
        """Record a sync that raised; `RetryAfter` is a request to come back."""
        if isinstance(error, RetryAfter):
            self.synced(key, error.delay_s)
            return
        self.syncs += 1
        record = self._record(str(key))
        record.error, record.after_s = error_text(error), None
        record.failed_at = self.version

    def skipped(self, key: str, reason: str) -> None:
        """Record that a key is not synced because its object is invalid."""
        self._record(key).error = reason

    # ---- results

    def to_retry(self) -> list[str]:
        """Return the failed keys whose sync came before the newest write."""
        return [
            key
            for key, record in self._keys.items()
            if record.error and record.failed_at < self.version
        ]

    def keys(self) -> dict[str, KeyPlan]:
        """Return the plans of the keys that change anything, fail, or ask to come back."""
        plans = {key: record.plan for key, record in sorted(self._keys.items())}
        return {
            key: plan
            for key, plan in plans.items()
            if plan.actions or plan.error or plan.after_s is not None
        }

    def changes(self) -> Iterator[PlannedChange]:
        """Yield the objects that change, in the order of the keys that write them."""
        for _, record in sorted(self._keys.items()):
            for (kind, key), write in record.writes.items():
                before, after = shown_values(write.kind, write.before, write.after)
                if before != after:
                    yield PlannedChange(kind, key, before, after)

    def summary(self, keys: dict[str, KeyPlan], exists: Callable[[str], bool]) -> PlanSummary:
        """Return the counts of these plans, and of the existing keys that change nothing."""
        busy = {key for key, plan in keys.items() if plan.actions or plan.error}
        synced = self._quiet | self._keys.keys()
        unchanged = sum(exists(key) for key in synced - busy)
        return PlanSummary.of(keys.values(), unchanged=unchanged)

    def _record(self, key: str) -> _KeyRecord:
        record = self._keys.get(key)
        if record is None:
            record = self._keys[key] = _KeyRecord()
            self._quiet.discard(key)
        return record


current_plan: ContextVar[PlanRecord | None] = ContextVar("current_plan", default=None)
"""The record of the plan that this task works on; None if its writes are stored."""

_reason: ContextVar[str | UnsetType] = ContextVar("reason", default=UNSET)


def planning() -> bool:
    """Return whether this code runs in a plan, in which no write is stored.

    A handler with effects outside of the stores asks this function and skips them.
    """
    return current_plan.get() is not None


@contextmanager
def because(reason: str) -> Iterator[None]:
    """Give the *reason* for the deletions in the context."""
    token = _reason.set(reason)
    try:
        yield
    finally:
        _reason.reset(token)
