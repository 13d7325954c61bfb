"""Writes the record of one member, and reads the records of all members.

No other process writes the record. If the store rejects a write, either an earlier write was stored
although its acknowledgement was lost, or somebody else has changed the record.
"""

import re
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from natsctl.core.coordination.membership import Membership
from natsctl.core.coordination.own_record import UNKNOWN_WORKLOAD, OwnRecord, OwnWrite, Workload
from natsctl.core.coordination.term import Clock
from natsctl.errors import DECODE_ERRORS, ConflictError
from natsctl.model.store import Store, Stored

SENT_MAX = 64  # writes whose sending times are kept


class MemberRecord(OwnRecord[Membership]):
    """The record of this process in a group; see `OwnRecord` for the arguments."""

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
        super().__init__(store, key, holder=holder, ttl_s=ttl_s, clock=clock, workload=workload)
        self.tried = 0.0  # when the last write was sent
        self.renewals = 0  # of the last write, whether or not it succeeded
        self._since = ""
        self._sent_at: dict[int, float] = {}  # by renewals

    @property
    def members(self) -> tuple[str, ...]:
        """The members that the stored record names, as far as this process knows."""
        return () if self.last is None else self.last.record.members

    async def take(self, *, complete: bool = False) -> None:
        """Write a record that claims no key, whatever the key has now.

        *complete* is `Membership.complete`; an earlier record of this process in the same bucket
        proves it too. Raises `StoreError`; then no record of this process is known.
        """
        self.last, self._sent_at = None, {}
        self._since = datetime.now(UTC).isoformat(timespec="microseconds")
        stored = await self._read()
        earlier = None if stored is None else _valid(stored.value)
        proven = earlier is not None and earlier.complete and earlier.holder == self.holder
        await self._put(self._next((), complete=complete or proven), stored)

    async def write(
        self, members: tuple[str, ...], *, complete: bool = False, left: bool = False
    ) -> None:
        """Write the record again with these members, as `_renew` does.

        *left* marks a member that works no more. A record that is *complete* stays so. Raises
        `ConflictError` if the key has no record of this process any more.
        """
        if self.last is None:
            raise ConflictError(f"{self.key} has no record of this process")
        complete = complete or self.last.record.complete
        await self._renew(self.last, self._next(members, complete=complete, left=left))

    async def leave(self) -> None:
        """Give up every key and write that the member left; raises `StoreError`.

        The record stays until it expires. It proves that this member left; a deleted record proves
        nothing.
        """
        while self.last is not None:
            await self.write((), left=True)
            if self.last.record.left:
                self.last = None

    def sent_at(self, record: Membership) -> float | None:
        """Return when this process sent the record, or None if it has sent no such record."""
        return self._sent_at.get(record.renewals) if record.since == self._since else None

    def _sent_time(self, own: Membership, last: OwnWrite[Membership]) -> float:
        return self._sent_at.get(own.renewals, last.sent)

    def _next(self, members: tuple[str, ...], *, complete: bool, left: bool = False) -> Membership:
        self.renewals += 1
        self.tried = self._sent_at[self.renewals] = self._clock()
        while len(self._sent_at) > SENT_MAX:
            del self._sent_at[next(iter(self._sent_at))]
        return Membership(
            holder=self.holder,
            since=self._since,
            ttl_s=0.0 if left else self.ttl_s,
            members=members,
            renewals=self.renewals,
            left=left,
            work=self.workload,
            complete=complete,
        )

    def _own(self, value: bytes) -> Membership | None:
        try:
            record = msgspec.json.decode(value, type=Membership)
        except DECODE_ERRORS:
            return None
        return None if self.sent_at(record) is None else record


class LivingRecords(Protocol):
    """A store of records that expire, such as the store of leases in NATS."""

    async def living(self, pattern: str) -> list[Stored]:
        """Return the records whose keys match the pattern."""
        ...


def records_of(name: str) -> str:
    """Return the pattern of the keys of a controller's member records."""
    return f"{name}.shards.*"


def record_key(name: str, identity: str) -> str:
    """Return the key of a member's record in a controller's group."""
    return f"{name}.shards.{re.sub('[^A-Za-z0-9-]', '_', identity)}"


async def members_of(leases: LivingRecords, name: str) -> dict[str, Membership]:
    """Return the records of the members that share a controller's keys, by their keys."""
    living = {stored.key: _valid(stored.value) for stored in await leases.living(records_of(name))}
    return {key: record for key, record in living.items() if record and not record.left}


def _valid(value: bytes) -> Membership | None:
    try:
        record = msgspec.json.decode(value, type=Membership)
    except DECODE_ERRORS:
        return None
    return record if record.possible else None
