"""Decides which keys of a controller belong to this process, among the processes that share them.

Every member of the group has a record that it alone writes. The record names the members among
which its writer divides the keys. A member claims the keys that its own record's members give to
it, and no other key. The bucket puts all records into one order, which every process sees.

- A member changes its members by a *rebalance*. First it *drains*: it stops work on the keys that
  others get, and waits until no worker here has one. Then it *publishes* the new members in its
  record. It divides the keys among them once its own cache has passed that write, because from
  then on it knows every record that was written before.
- A key belongs to this process if its members give the key to it, and no other record claims it.

So no two processes work on the same key: of two records that claim it, one was written later, and
its writer has seen the other. The other writer does not stop work on the key before it writes that.

A member that is silent for longer than its work can last is dead, and claims nothing. Silence
begins when the record was first seen, and ends when it changes. Its length counts up to the sending
time of this process's newest write that the cache includes: a watch that is stuck proves nothing.

A member that leaves writes that it `left`. If a record vanishes or is overwritten with an invalid
value, its writer did not give it up and may still work, with members that this process never saw.
Silence then begins when that was noticed. Until the member is dead, its lost record keeps its last
claim, or claims every key if no claim of it was seen. The same holds for a member that another
member's record names, until its own record appears, and for a deleted record that was never seen.

A recreated bucket lacks the records of the members that have not noticed the loss, and the members
that have joined again may not know all of them. Therefore a member needs proof that the records are
*complete*: that every member that may work has one. The first process of a controller has that
proof. Every record states whether its writer has the proof, and so passes it on to each member that
sees the record, for as long as the bucket exists. A member that joins without proof assumes that an
unknown member claims every key, until such a member must be dead.

*Assumes* that clocks run at the same speed within a tenth.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache

import msgspec

from natsctl.core.coordination.assignment import Assignment
from natsctl.core.coordination.own_record import TAKE_OVER, UNKNOWN_WORKLOAD, Workload, possible_ttl
from natsctl.core.coordination.rendezvous import MemberSet
from natsctl.core.coordination.term import Clock
from natsctl.core.table import Cache

UNKNOWN = "?"  # the key of a member that may exist without a record
KNOWN_MAX = 5_000  # answers of one assignment, about 0.5 MB


class Membership(msgspec.Struct, frozen=True, rename="camel"):
    """A member's record as it is stored: its name, since when (RFC 3339), and its time to live.

    `members` are those among which it divides the keys; without members it claims none. `renewals`
    makes every write differ from the one before. `left` marks a member that works no more; its time
    to live is 0, which members of version 0.1 take for a dead member. `complete` states that every
    member that may work has a record in the same bucket. In records of version 0.1, which are
    purged when a member leaves, `left` is None, `work` is empty and `complete` is False.
    """

    holder: str
    since: str
    ttl_s: float
    members: tuple[str, ...] = ()
    renewals: int = 0
    left: bool | None = None
    work: Workload = UNKNOWN_WORKLOAD
    complete: bool = False

    @property
    def possible(self) -> bool:
        """True if a member can have written this record."""
        return bool(self.holder) and (bool(self.left) or possible_ttl(self.ttl_s))


class SharedAssignment:
    """The keys that every one of *own* gives to *identity*, and that no other member claims.

    *claims* are the members among which each other member divides the keys, by its name. The set
    never changes, so it remembers its last answers: several parts of a process ask about each key.
    """

    def __init__(
        self, identity: str, own: tuple[MemberSet, ...], claims: Mapping[str, MemberSet]
    ) -> None:
        self._identity = identity
        self.own = own
        self.claims = claims
        self._rivals = [  # where *identity* may not be the only member that gets a key
            (name, members)
            for name, members in claims.items()
            if name == identity or members not in own
        ]
        self._known = lru_cache(KNOWN_MAX)(self._find)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedAssignment) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self.own)

    @property
    def _parts(self) -> tuple[str, tuple[MemberSet, ...], Mapping[str, MemberSet]]:
        return self._identity, self.own, self.claims

    def has(self, key: Hashable) -> bool:
        """See `Assignment.has`."""
        return self._known(key)

    def _find(self, key: Hashable) -> bool:
        for members in self.own:
            if not members.gives(key, self._identity):
                return False
        return not any(members.gives(key, name) for name, members in self._rivals)

    def within(self, other: Assignment) -> bool:
        """See `Assignment.within`."""
        return (
            isinstance(other, SharedAssignment)
            and all(self._implies(members) for members in other.own)
            and all(
                self._implies(members) or self.claims.get(name) == members
                for name, members in other.claims.items()
            )
        )

    def _implies(self, members: MemberSet) -> bool:
        return _implied(members, self.own, self._identity)


class Rebalance(msgspec.Struct, eq=False):
    """The change from one set of members to the next: drained, published, passed."""

    identity: str  # the name of this process
    before: MemberSet  # the members among which it divides the keys now
    after: MemberSet
    drained: bool = False  # whether no worker here has a key that others get
    _published: int | None = None  # the first renewal that names the next members

    def gives_up(self, key: Hashable) -> bool:
        """Return whether this process has the key before, and another member after."""
        identity = self.identity
        return self.before.gives(key, identity) and not self.after.gives(key, identity)

    def published(self, renewal: int) -> tuple[str, ...]:
        """Return the members for the record, and note the first renewal that names them."""
        self._published = renewal if self._published is None else self._published
        return self.after.names

    def done(self, own: Membership | None) -> bool:
        """Return whether *own*, the cached record of this process, names the next members.

        The cache then has every record that was written before. The write need not have been
        acknowledged.
        """
        return (
            self._published is not None
            and own is not None
            and own.renewals >= self._published
            and own.members == self.after.names
        )


class _Seen(msgspec.Struct, frozen=True):
    """The last record of another member, the time since which it is silent, and if it still exists.

    `since` is the time at which the record was first seen, or lost.
    """

    record: Membership
    revision: int
    since: float
    exists: bool = True

    @property
    def dead_at(self) -> float:
        """The member is dead if it is silent until this time."""
        return self.since + TAKE_OVER * self.record.ttl_s

    @property
    def claim(self) -> tuple[str, ...]:
        """The members whose keys it may have; a lost record without members claims every key."""
        record = self.record
        if self.exists or record.members or record.left is not False:
            return record.members
        return (record.holder,)


class Group(msgspec.Struct, eq=False, kw_only=True):
    """The members of a group, as one of them sees their records in its cache."""

    cache: Cache[Membership]
    key: str  # of the record of this process
    identity: str  # the name of this process; no other process ever has it
    clock: Clock
    ttl_s: float  # the time to live of a member whose record was never seen
    workload: Workload = UNKNOWN_WORKLOAD  # members with another one are strangers
    own: Membership | None = None  # the cached record of this process
    _seen: dict[str, _Seen] = {}  # the other members, by the keys of their records
    _proven: float = -math.inf  # silence is proven up to this time

    def look(self) -> None:
        """Take over the cache's state; to be called at every change of the cache."""
        records = self._records()
        for key, (record, revision) in records.items():
            last_seen = self._seen.get(key)
            if last_seen is None or (last_seen.revision, last_seen.record) != (revision, record):
                self._seen[key] = _Seen(record, revision, self.clock())
            self._seen.pop(_unseen_key(record.holder), None)
        for key in self._seen.keys() - records.keys():
            self._begin_silence(key, self._revision(key))
        for key in self.cache.invalid.keys() - records.keys() - {self.key}:
            self._begin_silence(key, self._revision(key))
        for holder in self._missing_members():
            self._begin_silence(_unseen_key(holder), 0, holder)
        own = self.cache.get(self.key)
        self.own = None if own is None else self.cache.kind.decode(own.value)
        if self.complete:
            self._seen.pop(UNKNOWN, None)
        self._forget()

    def deleted(self, key: str) -> None:
        """Note the deletion of a record that may never have been seen."""
        if key != self.key and key not in self._seen:
            self._begin_silence(key, 0)

    def suspect(self) -> None:
        """Note that there may be a member without any record."""
        self._begin_silence(UNKNOWN, 0)

    def prove(self, sent: float) -> None:
        """Note that a write that this process sent at that time has come through the cache."""
        self._proven = max(self._proven, sent)
        self._forget()

    @property
    def complete(self) -> bool:
        """True if a record proves that every member that may work has a record."""
        if self.own is not None and self.own.complete:
            return True
        return any(member.exists and member.record.complete for member in self._of_same_work())

    @property
    def suspects(self) -> bool:
        """True if there may be a member without any record."""
        return UNKNOWN in self._seen

    @property
    def lost(self) -> tuple[str, ...]:
        """The members that may work although their records are lost."""
        return tuple(member.record.holder for member in self._claiming() if not member.exists)

    @property
    def living(self) -> MemberSet:
        """The members among which to divide the keys: this process, and all living members."""
        living = (member for member in self._members() if member.exists and self._lives(member))
        return MemberSet((self.identity, *(member.record.holder for member in living)))

    @property
    def stranger(self) -> Membership | None:
        """The record of a living member that runs another controller, None if there is none."""
        strangers = (
            member.record
            for member in self._seen.values()
            if not self.workload.same(member.record.work)
            and not member.record.left
            and self._lives(member)
        )
        return min(strangers, key=lambda record: (not record.members, record.since), default=None)

    def proof_due(self, sent: float) -> float:
        """Return when to write so that the next silent member is proven dead.

        *sent* is the time of the last write, which may not have come through the cache yet.
        """
        deaths = (member.dead_at for member in self._members() if self._lives(member))
        return min((dead_at for dead_at in deaths if dead_at > sent), default=math.inf)

    def assignment(self, *own: MemberSet) -> SharedAssignment:
        """Return the keys that each of *own* gives to this process, and no other member claims."""
        distinct = dict.fromkeys(own)
        widest = tuple(
            members
            for members in distinct
            if not _implied(
                members, [wider for wider in distinct if wider != members], self.identity
            )
        )
        claims = {member.record.holder: MemberSet(member.claim) for member in self._claiming()}
        other_claims = {
            name: members
            for name, members in claims.items()
            if not _implied(members, widest, self.identity)  # else it claims no key of ours
        }
        return SharedAssignment(self.identity, widest, other_claims)

    def whose(self, key: str) -> str | None:
        """Return the other member that claims the key, None if no such member is known."""
        for member in self._claiming():
            if MemberSet(member.record.members).gives(key, member.record.holder):
                return member.record.holder
        return None

    def _records(self) -> dict[str, tuple[Membership, int]]:
        """Return the other members' valid records and their revisions, by key."""
        records = {}
        for key in set(self.cache.keys()) - self.cache.invalid.keys() - {self.key}:
            stored = self.cache.get(key)
            if stored is not None:
                record = self.cache.kind.decode(stored.value)
                if record.possible:
                    records[key] = record, stored.revision
        return records

    def _revision(self, key: str) -> int:
        newest = self.cache.newest(key)
        return 0 if newest is None else newest.revision

    def _missing_members(self) -> set[str]:
        """Return the members that records of living members name, and that have no record."""
        named = self._named_members(self._claiming())
        return named - {member.record.holder for member in self._seen.values()} - {self.identity}

    def _begin_silence(self, key: str, revision: int, holder: str = "") -> None:
        """Begin the silence of a member whose record was lost since the last call of `look`."""
        last_seen, now = self._seen.get(key), self.clock()
        if last_seen is None:
            record = Membership(holder or key, "", self.ttl_s, left=False, work=self.workload)
            self._seen[key] = _Seen(record, revision, now, exists=False)
        elif last_seen.exists or (revision and revision != last_seen.revision):
            self._seen[key] = _Seen(last_seen.record, revision, now, exists=False)

    def _members(self) -> list[_Seen]:
        """Return the members that run the same controller and have not left."""
        return [member for member in self._of_same_work() if not member.record.left]

    def _of_same_work(self) -> list[_Seen]:
        return [member for member in self._seen.values() if self.workload.same(member.record.work)]

    def _claiming(self) -> list[_Seen]:
        return [member for member in self._members() if member.claim and self._lives(member)]

    def _lives(self, member: _Seen) -> bool:
        return self._proven < member.dead_at

    def _forget(self) -> None:
        """Forget members whose records vanished, if they claim no key or are dead."""
        claiming = self._claiming()
        named = self._named_members(claiming)
        for key, member in list(self._seen.items()):
            vanished = not member.exists and key not in self.cache
            if vanished and member not in claiming and member.record.holder not in named:
                del self._seen[key]

    def _named_members(self, claiming: Iterable[_Seen]) -> set[str]:
        return {name for member in claiming if member.exists for name in member.record.members}


def _unseen_key(holder: str) -> str:
    """Return the key of a member without a record; no record has such a key."""
    return f"?{holder}"


def _implied(members: MemberSet, wider_sets: Iterable[MemberSet], identity: str) -> bool:
    """Return whether *members* gives *identity* every key that one of *wider_sets* gives to it."""
    return identity in members.names and any(wider.includes(members) for wider in wider_sets)
