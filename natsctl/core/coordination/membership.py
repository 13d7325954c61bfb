"""Which keys of a controller are ours, of those that share them: what everybody says, and follows.

Every member of the group has a record, which it alone writes. The record says by which *view* of
the group it works: a member claims those keys that its view gives to it, and no other. The bucket
puts all records in one order, which everybody sees.

- To change its view a member first *drains*: it lets go of what the new view gives to others, and
  waits until it is at none of that. Then it *publishes* the view, and works by it once its own
  cache has *passed* that: now it knows every record that was written before.
- A key is ours if our view gives it to us, and no other record claims it.

So no two are ever at one key: of two records that claim it, one was written later, and whoever
wrote that has seen the other. The other does not let go of it before it says so.

A member that is silent for longer than its work can last is dead, and claims nothing any more.
Silence begins when a record was first seen, and lasts until we sent a write of our own that our
cache has passed: a watch that is stuck proves nothing.

A member that leaves writes that it `left`. A record that vanishes, or is written over with
something that is no record, was not given up by its writer, which may still be at work by a view
that we never saw. Silence then begins when that was seen. Until then the lost record keeps its last
claim, or claims every key if we saw no claim of it. The same holds for a member that another's view
names, and for a deletion whose record we never saw.

*Assumes* that clocks run alike within a tenth.
"""

import math
from collections.abc import Hashable, Iterable, Mapping

import msgspec

from natsctl.core.cache.cache import Cache
from natsctl.core.coordination.assignment import Assignment
from natsctl.core.coordination.lease import TAKE_OVER, UNKNOWN_WORKLOAD, Workload, possible_ttl
from natsctl.core.coordination.rendezvous import MemberSet
from natsctl.core.coordination.term import Clock

NO_MEMBERS = MemberSet()


class Membership(msgspec.Struct, frozen=True, rename="camel"):
    """A member's record as it is stored: its name, since when (RFC 3339), and on what terms.

    `members` is the view by which it works; with none it claims nothing. `renewals` makes every
    write differ from the one before. `left` says that the member works no more; then its time to
    live is 0, which members of version 0.1 take for one that is dead. `left` is None in records of
    version 0.1, which are purged when a member leaves, and `work` is empty there.
    """

    holder: str
    since: str
    ttl_s: float
    members: tuple[str, ...] = ()
    renewals: int = 0
    left: bool | None = None
    work: Workload = UNKNOWN_WORKLOAD

    @property
    def possible(self) -> bool:
        """True for a record that a member can have written."""
        return bool(self.holder) and (bool(self.left) or possible_ttl(self.ttl_s))


class SharedAssignment:
    """Some of all keys: what each of *views* gives to us, and none of *others* to who has it."""

    def __init__(
        self, identity: str, views: tuple[MemberSet, ...], others: Mapping[str, MemberSet]
    ) -> None:
        self._identity = identity
        self.views = views
        self.others = others

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedAssignment) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self.views)

    @property
    def _parts(self) -> tuple[str, tuple[MemberSet, ...], Mapping[str, MemberSet]]:
        return self._identity, self.views, self.others

    def has(self, key: Hashable) -> bool:
        """See `Assignment.has`."""
        return all(view.owner(key) == self._identity for view in self.views) and not any(
            view.owner(key) == name for name, view in self.others.items()
        )

    def within(self, other: Assignment) -> bool:
        """See `Assignment.within`."""
        return (
            isinstance(other, SharedAssignment)
            and all(self._implies(view) for view in other.views)
            and all(
                self._implies(view) or self.others.get(name) == view
                for name, view in other.others.items()
            )
        )

    def _implies(self, view: MemberSet) -> bool:
        return _implied(view, self.views, self._identity)


class Rebalance:
    """The way from one view to the next: drained, published, passed.

    Args:
        identity: whose.
        before: the view by which we work.
        after: the one by which we are to.
    """

    def __init__(self, identity: str, before: MemberSet, after: MemberSet) -> None:
        self.after = after
        self.drained = False  # whether we are at no key that goes
        self._identity = identity
        self._before = before
        self._first: int | None = None  # the renewal by which it was published first

    def goes(self, key: Hashable) -> bool:
        """Say whether it takes the key from us."""
        owned = self._before.owner(key) == self._identity
        return owned and self.after.owner(key) != self._identity

    def published(self, renewal: int) -> tuple[str, ...]:
        """Return what our record says from this renewal on, if not from an earlier one."""
        self._first = renewal if self._first is None else self._first
        return self.after.members

    def done(self, own: Membership | None) -> bool:
        """Say whether *own*, our record as our cache has it, says so: then all before it is known.

        That may be so before anybody has answered.
        """
        return (
            self._first is not None
            and own is not None
            and own.renewals >= self._first
            and own.members == self.after.members
        )


class _Seen(msgspec.Struct, frozen=True):
    """The last record of another member, since when that is silent, and whether it is there still.

    `at` is when the record was first seen, or when it was lost.
    """

    record: Membership
    revision: int
    at: float
    there: bool = True

    @property
    def dead_at(self) -> float:
        """Until when it has to be silent to be dead."""
        return self.at + TAKE_OVER * self.record.ttl_s

    @property
    def claim(self) -> tuple[str, ...]:
        """The view by which it may work; of a lost record that showed none, all is its own."""
        record = self.record
        if self.there or record.members or record.left is not False:
            return record.members
        return (record.holder,)


class Group:
    """What one member knows of all, from a cache of their records.

    Args:
        cache: of the records, each under a key of its own.
        key: of our own record.
        identity: who we are: nobody else may ever have the same name.
        clock: seconds that never go back.
        ttl_s: how long a member lives whose record we never saw.
        work: what the keys are of; members that work on something else are strangers.
    """

    def __init__(
        self,
        cache: Cache[Membership],
        key: str,
        *,
        identity: str,
        clock: Clock,
        ttl_s: float,
        work: Workload = UNKNOWN_WORKLOAD,
    ) -> None:
        self.own: Membership | None = None  # our own record, as our cache has it
        self._cache = cache
        self._key = key
        self._identity = identity
        self._clock = clock
        self._ttl_s = ttl_s
        self._work = work
        self._seen: dict[str, _Seen] = {}  # the others, by the keys of their records
        self._proven = -math.inf  # until when silence is proven

    def look(self) -> None:
        """Take in what the cache has now; to be called at every change of it."""
        found = self._records()
        for key, (record, revision) in found.items():
            seen = self._seen.get(key)
            if seen is None or (seen.revision, seen.record) != (revision, record):
                self._seen[key] = _Seen(record, revision, self._clock())
        for key in self._seen.keys() - found.keys():
            self._lose(key, self._revision(key))
        for key in self._cache.invalid.keys() - found.keys() - {self._key}:
            self._lose(key, self._revision(key))
        for holder in self._missing():
            self._lose(f"?{holder}", 0, holder)
        own = self._cache.get(self._key)
        self.own = None if own is None else self._cache.kind.decode(own.value)
        self._forget()

    def deleted(self, key: str) -> None:
        """Take in that a record was deleted which may never have been seen here."""
        if key != self._key and key not in self._seen:
            self._lose(key, 0)

    def suspect(self) -> None:
        """Take in that there may be members of which nobody has a record."""
        self._lose("?", 0)

    def prove(self, sent: float) -> None:
        """Take in that the cache has passed a write of ours that was sent then."""
        self._proven = max(self._proven, sent)
        self._forget()

    @property
    def alone(self) -> bool:
        """True if this member knows no other record."""
        return not self._seen

    @property
    def lost(self) -> tuple[str, ...]:
        """Members that may be at work although their records are gone."""
        return tuple(seen.record.holder for seen in self._claiming() if not seen.there)

    @property
    def wanted(self) -> MemberSet:
        """By which members to divide the keys: those who live, and we."""
        live = (seen for seen in self._members() if seen.there and self._lives(seen))
        return MemberSet((self._identity, *(seen.record.holder for seen in live)))

    @property
    def stranger(self) -> Membership | None:
        """The record of a living member that works on something else, None if there is none."""
        strangers = (
            seen.record
            for seen in self._seen.values()
            if not self._work.same(seen.record.work) and not seen.record.left and self._lives(seen)
        )
        return min(strangers, key=lambda record: (not record.members, record.since), default=None)

    def proof_due(self, sent: float) -> float:
        """Return when to write, to prove the next one dead; what was *sent* last is on its way."""
        due = (seen.dead_at for seen in self._members() if self._lives(seen))
        return min((at for at in due if at > sent), default=math.inf)

    def share(self, *views: MemberSet) -> SharedAssignment:
        """Return the keys that each of the views gives to us, and nobody else claims."""
        distinct = dict.fromkeys(views)
        widest = tuple(
            view
            for view in distinct
            if not _implied(view, [other for other in distinct if other != view], self._identity)
        )
        claims = {seen.record.holder: MemberSet(seen.claim) for seen in self._claiming()}
        others = {
            name: view
            for name, view in claims.items()
            if not _implied(view, widest, self._identity)  # else it claims nothing that is ours
        }
        return SharedAssignment(self._identity, widest, others)

    def whose(self, key: str) -> str | None:
        """Return which other member claims the key, None if none is known to."""
        for seen in self._claiming():
            if MemberSet(seen.record.members).owner(key) == seen.record.holder:
                return seen.record.holder
        return None

    def _records(self) -> dict[str, tuple[Membership, int]]:
        """Return the others' valid records and their revisions, by key."""
        found = {}
        for key in set(self._cache.keys()) - self._cache.invalid.keys() - {self._key}:
            stored = self._cache.get(key)
            if stored is not None:
                record = self._cache.kind.decode(stored.value)
                if record.possible:
                    found[key] = record, stored.revision
        return found

    def _revision(self, key: str) -> int:
        newest = self._cache.newest(key)
        return 0 if newest is None else newest.revision

    def _missing(self) -> set[str]:
        """Return the members that views of living members name, and that have no record."""
        named = {name for seen in self._claiming() if seen.there for name in seen.record.members}
        return named - {seen.record.holder for seen in self._seen.values()} - {self._identity}

    def _lose(self, key: str, revision: int, holder: str = "") -> None:
        """Count the silence of a member from now, if its record is lost since the last look."""
        seen, now = self._seen.get(key), self._clock()
        if seen is None:
            record = Membership(holder or key, "", self._ttl_s, left=False, work=self._work)
            self._seen[key] = _Seen(record, revision, now, there=False)
        elif seen.there or (revision and revision != seen.revision):
            self._seen[key] = _Seen(seen.record, revision, now, there=False)

    def _members(self) -> list[_Seen]:
        """Return the members that have the same work as we and have not left."""
        known = self._seen.values()
        return [at for at in known if not at.record.left and self._work.same(at.record.work)]

    def _claiming(self) -> list[_Seen]:
        return [seen for seen in self._members() if seen.claim and self._lives(seen)]

    def _lives(self, seen: _Seen) -> bool:
        return self._proven < seen.dead_at

    def _forget(self) -> None:
        """Forget members whose records vanished, if they have no keys or are dead."""
        claiming = self._claiming()
        named = {name for seen in claiming if seen.there for name in seen.record.members}
        for key, seen in list(self._seen.items()):
            vanished = not seen.there and key not in self._cache
            if vanished and seen not in claiming and seen.record.holder not in named:
                del self._seen[key]


def _implied(view: MemberSet, by: Iterable[MemberSet], identity: str) -> bool:
    """Say whether what one of these views gives to *identity*, the view gives to it as well."""
    return identity in view.members and any(wider.includes(view) for wider in by)
