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

Who is silent for longer than its work can last is dead, and claims nothing any more. Silence begins
when a record was first seen, and lasts until we sent a write of our own that our cache has passed:
a watch that is stuck proves nothing. A record that vanishes was not given up by who wrote it.

*Assumes* that clocks run alike within a tenth, and that nobody joins in the moment between the loss
of a record that others deleted and its writer's next renewal.
"""

import math
from collections.abc import Hashable, Iterable, Mapping

import msgspec

from natsctl.core.cache import Cache
from natsctl.core.leadership import Clock
from natsctl.core.lease import TAKE_OVER
from natsctl.core.portions import Portion
from natsctl.core.rendezvous import View

NOBODY = View()


class Membership(msgspec.Struct, frozen=True, rename="camel"):
    """A member's record as it is stored: who it is, since when (RFC 3339), and on what terms.

    `members` is the view by which it works; with none it claims nothing. `renewals` makes every
    write differ from the one before.
    """

    holder: str
    since: str
    ttl_s: float
    members: tuple[str, ...] = ()
    renewals: int = 0


class Share:
    """Some of all keys: what each of *views* gives to us, and none of *others* to who has it."""

    def __init__(self, identity: str, views: tuple[View, ...], others: Mapping[str, View]) -> None:
        self._identity = identity
        self.views = views
        self.others = others

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Share) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self.views)

    @property
    def _parts(self) -> tuple[str, tuple[View, ...], Mapping[str, View]]:
        return self._identity, self.views, self.others

    def has(self, key: Hashable) -> bool:
        """See `Portion.has`."""
        return all(view.owner(key) == self._identity for view in self.views) and not any(
            view.owner(key) == name for name, view in self.others.items()
        )

    def within(self, other: Portion) -> bool:
        """See `Portion.within`."""
        return (
            isinstance(other, Share)
            and all(self._implies(view) for view in other.views)
            and all(
                self._implies(view) or self.others.get(name) == view
                for name, view in other.others.items()
            )
        )

    def _implies(self, view: View) -> bool:
        return _implied(view, self.views, self._identity)


class Move:
    """The way from one view to the next: drained, published, passed.

    Args:
        identity: whose.
        before: the view by which we work.
        after: the one by which we are to.
    """

    def __init__(self, identity: str, before: View, after: View) -> None:
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
    """A record of another member, when it was first seen, and whether it is there still."""

    record: Membership
    revision: int
    at: float
    there: bool = True

    @property
    def dead_at(self) -> float:
        """Until when it has to be silent to be dead."""
        ttl_s = self.record.ttl_s
        return self.at + TAKE_OVER * ttl_s if math.isfinite(ttl_s) else math.inf


class Group:
    """What one member knows of all, from a cache of their records.

    Args:
        cache: of the records, each under a key of its own.
        key: of our own record.
        identity: who we are: nobody else may ever have the same name.
        clock: seconds, never going back, read anew at each call.
    """

    def __init__(self, cache: Cache[Membership], key: str, *, identity: str, clock: Clock) -> None:
        self.own: Membership | None = None  # our own record, as our cache has it
        self._cache = cache
        self._key = key
        self._identity = identity
        self._clock = clock
        self._seen: dict[str, _Seen] = {}  # the others, by the keys of their records
        self._proven = -math.inf  # until when silence is proven

    def look(self) -> None:
        """Take in what the cache has now; to be called at every change of it."""
        now, found = self._clock(), {key: self._cache.get(key) for key in self._cache.keys()}  # noqa: SIM118 - a cache is no dict
        for key, stored in found.items():
            if stored is None or key == self._key:
                continue
            seen, record = self._seen.get(key), self._cache.kind.decode(stored.value)
            if seen is None or (seen.revision, seen.record) != (stored.revision, record):
                self._seen[key] = _Seen(record, stored.revision, now)
        for key in self._seen.keys() - found.keys():
            self._seen[key] = msgspec.structs.replace(self._seen[key], there=False)
        own = found.get(self._key)
        self.own = None if own is None else self._cache.kind.decode(own.value)
        self._forget()

    def prove(self, sent: float) -> None:
        """Take in that the cache has passed a write of ours that was sent then."""
        self._proven = max(self._proven, sent)
        self._forget()

    @property
    def wanted(self) -> View:
        """By which members to divide the keys: those who live, and we."""
        live = (seen for seen in self._seen.values() if seen.there and self._lives(seen))
        return View((self._identity, *(seen.record.holder for seen in live)))

    def proof_due(self, sent: float) -> float:
        """Return when to write, to prove the next one dead; what was *sent* last is on its way."""
        due = (seen.dead_at for seen in self._seen.values() if self._lives(seen))
        return min((at for at in due if at > sent), default=math.inf)

    def share(self, *views: View) -> Share:
        """Return the keys that each of the views gives to us, and nobody else claims."""
        distinct = dict.fromkeys(views)
        widest = tuple(
            view
            for view in distinct
            if not _implied(view, [other for other in distinct if other != view], self._identity)
        )
        claims = {seen.record.holder: View(seen.record.members) for seen in self._claiming()}
        others = {
            name: view
            for name, view in claims.items()
            if not _implied(view, widest, self._identity)  # else it claims nothing that is ours
        }
        return Share(self._identity, widest, others)

    def whose(self, key: str) -> str | None:
        """Return which other member claims the key, None where nobody is known to."""
        for seen in self._claiming():
            if View(seen.record.members).owner(key) == seen.record.holder:
                return seen.record.holder
        return None

    def _claiming(self) -> list[_Seen]:
        return [at for at in self._seen.values() if at.record.members and self._lives(at)]

    def _lives(self, seen: _Seen) -> bool:
        return self._proven < seen.dead_at

    def _forget(self) -> None:
        """Forget who has vanished, where it had given up everything or is dead by now."""
        for key, seen in list(self._seen.items()):
            if not seen.there and not (seen.record.members and self._lives(seen)):
                del self._seen[key]


def _implied(view: View, by: Iterable[View], identity: str) -> bool:
    """Say whether what one of these views gives to *identity*, the view gives to it as well."""
    return identity in view.members and any(wider.includes(view) for wider in by)
