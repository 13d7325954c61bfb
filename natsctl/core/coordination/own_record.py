"""Writes a record that no other process writes, and knows when it expires.

A process renews its record by compare-and-set. Other processes consider the record expired when
they have seen the same revision for long enough, by their own clocks. Therefore no two clocks are
compared, and the wall clock is not used. Every deadline is a share of the record's time to live. A
process counts from before it sent its last acknowledged write; others count from when they first
read that write:

    renew 0.15 · step down 0.5 · void 0.7 · take over 0.85
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

import msgspec

from natsctl.core.compare_and_set import read
from natsctl.core.coordination.term import Clock
from natsctl.errors import ConflictError, StoreError
from natsctl.model.store import Store, Stored

R = TypeVar("R")

RENEW = 0.15  # the process renews its record
RETRY = 0.05  # pause after a renewal that failed
STEP_DOWN = 0.5  # the process ends its work if no renewal succeeded
VOID = 0.7  # no write or step of that work runs any more
TAKE_OVER = 0.85  # other processes take over
TTL_MIN_S, TTL_MAX_S = 1.0, 3600.0  # a record with another time to live is invalid


class Workload(msgspec.Struct, frozen=True, omit_defaults=True):
    """A controller's work: its primaries' kind, the installation's id, and the cluster's identity.

    A field is empty if it is not known, as in older records, or if the controller needs no cluster.
    """

    owner: str = ""
    installation: str = ""
    cluster: str = ""

    def same(self, other: "Workload") -> bool:
        """Return whether both may be the same: no field that both know differs."""
        return self._same_controller(other) and _agree(self.cluster, other.cluster)

    def only_elsewhere(self, other: "Workload") -> bool:
        """Return whether both are the same controller, but in different clusters."""
        return self._same_controller(other) and not _agree(self.cluster, other.cluster)

    def _same_controller(self, other: "Workload") -> bool:
        return _agree(self.owner, other.owner) and _agree(self.installation, other.installation)

    def __str__(self) -> str:
        owner = self.owner or "an unknown kind"
        return f"{owner} of installation {self.installation}" if self.installation else owner


def _agree(ours: str, theirs: str) -> bool:
    return not ours or not theirs or ours == theirs


UNKNOWN_WORKLOAD = Workload()
NO_CLUSTERS: Mapping[str, str] = MappingProxyType({})


class OwnWrite(msgspec.Struct, Generic[R], frozen=True):
    """A stored record of this process.

    `sent` is a time before the write was sent. `epoch` is the revision of the first write; it grows
    from one writer of a key to the next.
    """

    record: R
    revision: int
    sent: float
    epoch: int


def possible_ttl(ttl_s: float) -> bool:
    """Return whether a record may have this time to live; NaN is not possible."""
    return TTL_MIN_S <= ttl_s <= TTL_MAX_S


class OwnRecord(ABC, Generic[R]):
    """The record of this process under one key.

    Args:
        store: the store of the record.
        key: the record's key.
        holder: the name of this process; no other process ever has it.
        ttl_s: the time to live: another process takes over within this time after a crash.
        clock: seconds that never go back.
        workload: the controller's work.
    """

    _REREAD: tuple[type[StoreError], ...] = (ConflictError,)  # a renewal reads the key after these

    def __init__(
        self,
        store: Store,
        key: str,
        *,
        holder: str,
        ttl_s: float,
        clock: Clock,
        workload: Workload = UNKNOWN_WORKLOAD,
    ) -> None:
        self.key = key
        self.holder = holder
        self.ttl_s = ttl_s
        self.workload = workload
        self.last: OwnWrite[R] | None = None  # the record that is known to be stored
        self._store = store
        self._clock = clock
        self._sent = 0.0  # of the last acknowledged write, even if the record was lost since

    @property
    def renew_at(self) -> float:
        """The time of the next renewal."""
        return self._sent + RENEW * self.ttl_s

    @property
    def step_down_at(self) -> float:
        """The time at which this process ends its work, unless it renews the record before."""
        return self._sent + STEP_DOWN * self.ttl_s

    @property
    def void_at(self) -> float:
        """The time from which other processes may do the work."""
        return self._sent + VOID * self.ttl_s

    @abstractmethod
    def _own(self, value: bytes) -> R | None:
        """Return the record in *value* if this process has written it since it took the key."""

    def _sent_time(self, own: R, last: OwnWrite[R]) -> float:  # noqa: ARG002 - a record may not differ from the one before
        """Return a time before this record of this process was sent, if it may follow *last*."""
        return last.sent

    async def _read(self) -> Stored | None:
        return await read(self._store, self.key)

    async def _put(self, record: R, over: Stored | None, *, epoch: int | None = None) -> None:
        """Create the record, or replace the state *over*; raises `StoreError`."""
        sent, value = self._clock(), msgspec.json.encode(record)
        if over is None:
            stored = await self._store.create(self.key, value)
        else:
            stored = await self._store.update(self.key, value, revision=over.revision)
        self._keep(OwnWrite(record, stored.revision, sent, epoch or stored.revision))

    async def _renew(self, last: OwnWrite[R], record: R) -> None:
        """Replace the last write.

        If an earlier write of this process is stored whose acknowledgement was lost, nothing is
        written: that write becomes the last one. Raises `ConflictError`
        if another process has changed the record, and another `StoreError` if the outcome is
        unknown.
        """
        sent = self._clock()
        try:
            stored = await self._store.update(
                self.key, msgspec.json.encode(record), revision=last.revision
            )
        except self._REREAD as error:
            current = await self._read()
            own = None if current is None else self._own(current.value)
            if current is None or own is None:
                self._check_lost(error)
                await self._put(record, current, epoch=last.epoch)
            else:
                sent = self._sent_time(own, last)
                self._keep(OwnWrite(own, current.revision, sent, last.epoch))
        else:
            self._keep(OwnWrite(record, stored.revision, sent, last.epoch))

    def _check_lost(self, error: Exception) -> None:
        """Raise `ConflictError` unless a record that this process lost may be written again."""
        self.last = None
        raise ConflictError(f"{self.key} was changed by another process") from error

    def _keep(self, write: OwnWrite[R]) -> None:
        self.last, self._sent = write, write.sent
