"""Our own record in a group: what we last said of ourselves, as far as that is known.

Nobody else writes it. So each write, by compare-and-set, tells what came of those before it: where
it is refused, one of them was stored although nobody said so, or somebody else was at it.
"""

from datetime import UTC, datetime
from typing import Protocol

import msgspec

from natsctl.core.coordination.lease import UNKNOWN_WORKLOAD, Workload
from natsctl.core.coordination.membership import Membership
from natsctl.core.coordination.term import Clock
from natsctl.errors import DECODE_ERRORS, ConflictError, NotFoundError
from natsctl.model.store import Store, Stored

SENT_MAX = 64  # writes of which it is remembered when they were sent


class MemberRecord:
    """One member's record.

    Args:
        store: where records are kept.
        key: of ours.
        holder: who we are.
        ttl_s: after how many seconds of silence others do our work.
        clock: seconds that never go back.
        work: what the keys are of.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        *,
        holder: str,
        ttl_s: float,
        clock: Clock,
        work: Workload = UNKNOWN_WORKLOAD,
    ) -> None:
        self.key = key
        self.holder = holder
        self.ttl_s = ttl_s
        self.record: Membership | None = None  # as it is known to be stored; None: we have none
        self.revision = 0  # of that
        self.sent = 0.0  # when that was sent, or before
        self.tried = 0.0  # when the last write was sent
        self.renewals = 0  # of that, whatever came of it
        self._store = store
        self._clock = clock
        self.work = work
        self._since = ""
        self._sent: dict[int, float] = {}

    @property
    def members(self) -> tuple[str, ...]:
        """The view that it is known to say."""
        return () if self.record is None else self.record.members

    async def take(self) -> None:
        """Write a record that claims nothing, over whatever is there.

        Raises `StoreError`; what is known of an earlier record is forgotten then.
        """
        self.record, self._sent = None, {}
        self._since = datetime.now(UTC).isoformat(timespec="microseconds")
        value, sent = self._next(()), self.tried
        try:
            found = await self._store.get(self.key)
        except NotFoundError:
            stored = await self._store.create(self.key, msgspec.json.encode(value))
        else:
            encoded = msgspec.json.encode(value)
            stored = await self._store.update(self.key, encoded, revision=found.revision)
        self._note(value, stored, sent)

    async def write(self, members: tuple[str, ...], *, left: bool = False) -> None:
        """Write the record again, with this view; *left* says that we work no more.

        If an earlier write stands, whose answer was lost, nothing is written, and `record` says
        what that was. Raises `ConflictError` if the record is ours no more, another `StoreError`
        if the outcome is unknown.
        """
        value, sent, before = self._next(members, left=left), self.tried, self.sent
        encoded = msgspec.json.encode(value)
        try:
            stored = await self._store.update(self.key, encoded, revision=self.revision)
        except ConflictError:
            await self._read_back(before)
        else:
            self._note(value, stored, sent)

    async def leave(self) -> None:
        """Give up every key and write that we left; raises `StoreError`.

        The record stays until the store forgets it: it proves that this member left, while a
        record that was deleted proves nothing.
        """
        while self.record is not None:
            await self.write((), left=True)
            if self.record.left:
                self.record = None

    def sent_at(self, seen: Membership) -> float | None:
        """Return when this record of ours was sent; None for one of another time."""
        return self._sent.get(seen.renewals) if seen.since == self._since else None

    def _next(self, members: tuple[str, ...], *, left: bool = False) -> Membership:
        self.renewals += 1
        self.tried = self._sent[self.renewals] = self._clock()
        while len(self._sent) > SENT_MAX:
            del self._sent[next(iter(self._sent))]
        return Membership(
            holder=self.holder,
            since=self._since,
            ttl_s=0.0 if left else self.ttl_s,
            members=members,
            renewals=self.renewals,
            left=left,
            work=self.work,
        )

    async def _read_back(self, sent: float) -> None:
        """Learn which of our earlier writes stands, each of which was sent after *sent*."""
        try:
            found = await self._store.get(self.key)
            record = msgspec.json.decode(found.value, type=Membership)
        except (NotFoundError, *DECODE_ERRORS) as error:
            self.record = None
            raise ConflictError(f"{self.key} was taken away, or written over") from error
        if self.sent_at(record) is None:
            self.record = None
            raise ConflictError(f"{self.key} was written by somebody else")
        self._note(record, found, sent)

    def _note(self, record: Membership, stored: Stored, sent: float) -> None:
        self.record, self.revision, self.sent = record, stored.revision, sent


class LivingRecords(Protocol):
    """A store of records that expire; the store of leases in NATS is one."""

    async def living(self, pattern: str) -> list[Stored]:
        """Return the records whose keys match the pattern."""
        ...


def records_of(name: str) -> str:
    """Return the keys of the records of a controller's group, as a pattern."""
    return f"{name}.shards.*"


async def members_of(leases: LivingRecords, name: str) -> dict[str, Membership]:
    """Return the records of the members that share a controller's keys, by their keys."""
    records = {at.key: _record(at.value) for at in await leases.living(records_of(name))}
    return {key: at for key, at in records.items() if at is not None and not at.left}


def _record(value: bytes) -> Membership | None:
    try:
        record = msgspec.json.decode(value, type=Membership)
    except DECODE_ERRORS:
        return None
    return record if record.possible else None
