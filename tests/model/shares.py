"""The rules by which processes divide shares, small enough that every state can be visited.

A few members and one stream, with one record (an epoch, and the owner of each share) and one
heartbeat per session. Each member sees the stream through its own watch: in order, late, and
without messages that a newer one of the same subject replaced. What it sends lands later or is
lost, and nobody learns which, except by the watch. That covers lost requests, lost answers,
processes that are stopped between check and write, and writes of processes that are gone. Time is
ticks: a session works for `limit` of them after it sent its newest heartbeat that came back.

`RULES` are those of `natsctl.core.coordination`, and what has the same name does the same. Leave
one out, and the checker finds a shortest run in which two sessions work on one share.

What the model leaves out, it allows more freely: a heartbeat that lands may have been sent at any
time, and a session that no record names is of any age. Between epochs only order and neighbourhood
count, so larger distances are one.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import permutations
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from tests.model.checker import NEVER, TICK, Step

RULES = {
    "returned": "a heartbeat counts when it came back through the watch, not when it's stored",
    "sent": "it counts from when it was sent, not from when it came back",
    "over": "a session that lapsed is over for good",
    "one watch": "record and heartbeats come through one watch, in one order",
    "cas": "the record is changed by compare-and-set only",
    "raise": "every change raises the epoch, so an epoch seen before is damage",
    "older": "a record whose epoch is below one seen before is damage, and nobody works by it",
    "equal": "so is another record with an epoch seen before",
    "drain": "work on a share ends before its release is sent",
    "doubt": "it doesn't begin again before a newer record is seen, whatever became of the release",
    "again": "a release is sent until a newer record is seen",
    "mark": "who takes from a silent session ends it first",
    "mark back": "it takes once the end mark came back, not when it was sent",
    "end cas": "an end mark is compare-and-set on the message that was seen `wait` ticks ago",
    "deletion": "a deleted heartbeat restarts that wait, as each message of its subject does",
    "calm": "nobody takes before its watch ran for `wait` ticks without damage",
    "shown": "or, if it just began, before each session has shown that it saw the record",
    "calm again": "nor does anybody make the record again before",
    "keep": "a record that's older than one seen keeps its owners when it's made again",
}

Record: TypeAlias = tuple[Any, ...]  # epoch and owners; empty if it's missing or garbled
Message: TypeAlias = tuple[Any, ...]  # kind, and a record or a session and its age

FREE = -1
RECORD, HEARTBEAT, END, DELETION, ANEW = "record", "heartbeat", "end mark", "deletion", "new bucket"


class Faults(NamedTuple):
    """How many of each may happen."""

    crashes: int = 0
    deleted: int = 0  # records, or garbled
    put_back: int = 0  # records
    heartbeats: int = 0  # deleted
    buckets: int = 0  # recreated
    late: int = 0  # heartbeats of sessions that are over


class Scope(NamedTuple):
    members: int = 2
    shares: int = 1
    faults: Faults = Faults()
    lossy: bool = True  # requests get lost, and heartbeats land late
    gives: bool = True  # members give shares up
    without: str = ""  # a rule
    unread: int = 2  # messages that a watch may lag
    wait: int = 4
    limit: int = 3
    ahead: bool = False  # a record may be put back that a running process hasn't seen


class Member(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """A process. Its current session has its own number."""

    up: bool = True
    good: bool = False  # whether it may work by the record
    seen: int = 0  # the highest epoch
    lease: int = -1  # ticks since its newest heartbeat that came back was sent; -1: none
    calm: int = 0  # ticks since its watch began or showed damage
    released: int = 0  # shares whose release was sent, as a mask
    record: Record = ()  # as its watch showed it
    silent: tuple[int, ...] = ()  # per share: ticks without a message of its owner, or `wait` + 1
    unread: tuple[Message, ...] = ()  # what its watch will bring
    change: Record = ()  # the record that it has sent
    ending: int = FREE  # the session for which it has sent an end mark
    listed: Record = ()  # the record with which its watch began
    late: tuple[Message, ...] = ()  # without "one watch": what its second watch will bring


class World(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    record: Record
    copy: Record  # of a record, which somebody may put back
    newest: tuple[str, ...]  # per session: the kind of its newest message
    members: tuple[Member, ...]
    faults: Faults


def about(message: Message) -> int:
    """Return the session that a message is about, or FREE if it's about the record."""
    return FREE if message[0] in {RECORD, ANEW} else message[1]


def put(w: World, i: int, m: Member) -> World:
    return replace(w, members=(*w.members[:i], m, *w.members[i + 1 :]))


class Shares:
    """Sessions are numbers: below `members` the current ones, above those that are over."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.has = {rule: rule != scope.without for rule in RULES}
        self.has["equal"] &= self.has["raise"]
        self.over_mark = scope.wait + 1
        self.free = (FREE,) * scope.shares
        self.heard = (0,) * scope.shares
        damage = scope.faults.deleted or scope.faults.put_back or scope.faults.buckets
        self.distance = 2 if damage else 1  # larger ones between epochs count as this

    def start(self) -> World:
        """The first member has the first share and works; everybody knows."""
        scope = self.scope
        record = (2, (0, *self.free[1:]))
        idle = Member(record=record, good=True, seen=2, calm=scope.wait, silent=self.heard)
        members = (replace(idle, lease=0), *[idle] * (scope.members - 1))
        newest = (HEARTBEAT, *[""] * (scope.members - 1))
        return World(record, (), newest, members, scope.faults)

    def parts(self, w: World) -> tuple[Hashable, ...]:
        """Return the state in parts, few of which differ between many states."""
        return (w.record, w.copy, w.newest, w.faults, *w.members)

    def whole(self, parts: Sequence[Any]) -> World:
        record, copy, newest, faults, *members = parts
        return World(record, copy, newest, tuple(members), faults)

    # ---- what is checked

    def works(self, i: int, m: Member, share: int) -> bool:
        return (
            m.good
            and 0 <= m.lease < self.scope.limit
            and m.record[1][share] == i
            and not m.released >> share & 1
        )

    def conflict(self, w: World) -> bool:
        return any(
            sum([self.works(i, m, share) for i, m in enumerate(w.members)]) > 1
            for share in range(self.scope.shares)
        )

    def at_work(self, w: World) -> bool:
        return all(
            any(self.works(i, m, share) for i, m in enumerate(w.members))
            for share in range(self.scope.shares)
        )

    # ---- what a member learns

    def see(self, w: World, i: int, m: Member, message: Message) -> Member:
        if message[0] == ANEW:
            return self.see_record(w, i, m, ())
        if message[0] == RECORD:
            return self.see_record(w, i, m, message[1])
        return self.see_heartbeat(i, m, message)

    def see_record(self, w: World, i: int, m: Member, record: Record) -> Member:
        silent = self.heard
        if record:
            known = dict(zip(m.record[1], m.silent, strict=True)) if m.record else {}
            silent = tuple([self.silence(w, i, m, s, known) for s in record[1]])
        m = replace(m, record=record, released=0, silent=silent)
        epoch = record[0] if record else 0
        older = self.has["older"] and epoch < m.seen
        if not record or older or (self.has["equal"] and epoch == m.seen):
            return replace(m, good=False, calm=0, listed=())
        return replace(m, good=True, seen=max(epoch, m.seen))

    def silence(self, w: World, i: int, m: Member, session: int, known: dict[int, int]) -> int:
        """Return since when a session is silent; one that's named anew is from now on."""
        if session in {FREE, i}:
            return 0
        if session in known:
            return known[session]
        ended = w.newest[session] == END and all(about(x) != session for x in m.unread)
        return self.over_mark if ended else 0

    def see_heartbeat(self, i: int, m: Member, message: Message) -> Member:
        kind, session, age = message
        if session == i:
            return self.count(m, age) if kind == HEARTBEAT and self.has["returned"] else m
        if not m.record or (kind == DELETION and not self.has["deletion"]):
            return m
        heard = self.over_mark if kind == END else 0
        ages = zip(m.record[1], m.silent, strict=True)
        return replace(
            m, silent=tuple([heard if s == session and a != self.over_mark else a for s, a in ages])
        )

    def count(self, m: Member, age: int) -> Member:
        """Count a heartbeat of the current session that was sent *age* ticks ago."""
        age = age if self.has["sent"] else 0
        if age < self.scope.limit and (m.lease < 0 or age < m.lease):
            return replace(m, lease=age)
        return m

    def lapse(self, w: World, i: int) -> World:
        """End the current session of a member: it gets a number of its own."""
        w = put(w, i, replace(w.members[i], lease=-1, released=0))
        newest = (*w.newest[:i], "", *w.newest[i + 1 :], w.newest[i])
        return self.renamed(replace(w, newest=newest), {i: len(w.newest)})

    def begin(self, w: World, m: Member) -> Member:
        """A process starts: its watch lists what there is."""
        silent = self.heard
        if w.record:
            ended = [s != FREE and w.newest[s] == END for s in w.record[1]]
            silent = tuple([self.over_mark if is_over else 0 for is_over in ended])
        return Member(
            good=bool(w.record),
            seen=w.record[0] if w.record else 0,
            record=w.record,
            silent=silent,
            listed=w.record,
            change=m.change,
            ending=m.ending,
        )

    # ---- the stream and the clock

    def land(self, w: World, message: Message) -> World:
        """Store the message; what was sent against the one that it replaces can't land any more."""
        kind, session = message[0], about(message)
        members = []
        for i, m in enumerate(w.members):
            n = m
            if session == FREE:
                n = replace(n, change=()) if m.change and self.has["cas"] else n
            elif m.ending == session and (self.has["end cas"] or kind == END):
                n = replace(n, ending=FREE)
            if m.up:
                brought = message if session in {FREE, i} else (kind, session, 0)
                n = replace(n, unread=(*m.unread, brought))
            members.append(n)
        w = replace(w, members=tuple(members))
        if session == FREE:
            return replace(w, record=message[1])
        newest = (*w.newest[:session], kind, *w.newest[session + 1 :])
        return replace(w, newest=newest)

    def tick(self, w: World) -> World:
        wait, limit = self.scope.wait, self.scope.limit
        lapsed = [i for i, m in enumerate(w.members) if m.lease == limit - 1]
        members = []
        for i, m in enumerate(w.members):
            n = m
            if m.lease >= 0:
                own = (HEARTBEAT, i)
                aged = [(*own, min(x[2] + 1, limit)) if x[:2] == own else x for x in m.unread]
                n = replace(n, lease=min(m.lease + 1, limit), unread=tuple(aged))
            if m.up and m.record:
                ages = zip(m.record[1], m.silent, strict=True)
                silent = [a + 1 if a < wait and s not in {FREE, i} else a for s, a in ages]
                n = replace(n, silent=tuple(silent))
            if m.up and m.calm < wait:
                n = replace(n, calm=m.calm + 1)
            members.append(n)
        w = replace(w, members=tuple(members))
        for i in lapsed if self.has["over"] else ():
            w = self.lapse(w, i)
        return w

    # ---- everything that can happen next

    def steps(self, w: World) -> Iterator[Step[World]]:
        yield TICK, ("tick",), self.tick(w)
        room = all(len(m.unread) < self.scope.unread for m in w.members)
        for i, m in enumerate(w.members):
            yield from self.requests(w, i, m, room=room)
            if m.up:
                if m.unread or m.late:
                    yield from self.watch(w, i, m)
                yield from self.record_requests(w, i, m)
                yield from self.to_end(w, i, m)
            else:
                rank = NEVER if any(m.up for m in w.members) else 8
                yield rank, ("starts", i), put(w, i, self.begin(w, m))
        yield from self.crashes(w)
        if room:
            yield from self.administrator(w)

    def requests(self, w: World, i: int, m: Member, *, room: bool) -> Iterator[Step[World]]:
        if m.change:
            sent = put(w, i, replace(m, change=()))
            if room:
                yield 1, ("record lands", i, m.change), self.land(sent, (RECORD, m.change))
            if self.scope.lossy:
                yield NEVER, ("record is lost", i), sent
        if m.ending != FREE:
            sent = put(w, i, replace(m, ending=FREE))
            if room:
                yield 1, ("end mark lands", i, m.ending), self.land(sent, (END, m.ending, 0))
            if self.scope.lossy:
                yield NEVER, ("end mark is lost", i), sent
        if m.lease >= 0 and room:
            # one that's as old as the limit matters to the others only
            for age in range(self.scope.limit + 1) if self.scope.lossy else (0,):
                n = m if self.has["returned"] else self.count(m, age)
                due = not age and m.lease and (HEARTBEAT, i, 0) not in m.unread
                landed = self.land(put(w, i, n), (HEARTBEAT, i, age))
                yield 5 if due else NEVER, ("heartbeat lands", i, age), landed

    def watch(self, w: World, i: int, m: Member) -> Iterator[Step[World]]:
        if m.unread:
            message, rest = m.unread[0], m.unread[1:]
            subject = about(message)
            n = replace(m, unread=rest)
            if subject != FREE or self.has["one watch"]:
                seen = put(w, i, self.see(w, i, n, message))
                own_end = subject == i and message[0] == END
                yield 0, ("sees", i, message), self.lapse(seen, i) if own_end else seen
            elif len(m.late) < self.scope.unread:
                yield 0, ("its watch lags", i), put(w, i, replace(n, late=(*m.late, message)))
            if any(about(x) == subject for x in rest):
                yield NEVER, ("misses", i, message), put(w, i, n)
        if m.late:
            n = self.see(w, i, replace(m, late=m.late[1:]), m.late[0])
            yield 0, ("sees late", i, m.late[0]), put(w, i, n)

    def record_requests(self, w: World, i: int, m: Member) -> Iterator[Step[World]]:
        has, calm = self.has, m.calm == self.scope.wait
        if m.released and not has["doubt"]:
            yield NEVER, ("goes on", i), put(w, i, replace(m, released=0))
        if m.listed and not calm and (not has["shown"] or self.shown(w, i, m.listed)):
            n = replace(m, calm=self.scope.wait, listed=())
            yield NEVER, ("everybody saw its record", i), put(w, i, n)
        newest = not m.late and all(about(x) != FREE for x in m.unread)
        if m.change or (has["cas"] and not newest):
            return  # what it asks now can't land
        if m.good:
            yield from self.give_up(w, i, m)
            if calm or not has["calm"]:
                yield from self.take(w, i, m)
        elif calm or not has["calm again"]:
            n = replace(m, change=self.make_again(m))
            yield 2, ("makes the record again", i, n.change), put(w, i, n)

    def make_again(self, m: Member) -> Record:
        return (m.seen + 1, m.record[1] if m.record and self.has["keep"] else self.free)

    def shown(self, w: World, i: int, listed: Record) -> bool:
        """Return whether all others saw the record; those that no record names can't work."""
        others = [m for j, m in enumerate(w.members) if j != i and m.lease >= 0]
        return all((RECORD, listed) not in m.unread for m in others)

    def give_up(self, w: World, i: int, m: Member) -> Iterator[Step[World]]:
        epoch, owners = m.record
        for share, owner in enumerate(owners):
            again = m.released >> share & 1
            first = self.scope.gives and 0 <= m.lease < self.scope.limit
            if owner == i and (self.has["again"] if again else first):
                change = (epoch + self.has["raise"], with_owner(owners, share, FREE))
                released = m.released | 1 << share if self.has["drain"] else m.released
                n = replace(m, change=change, released=released)
                yield 4 if again else NEVER, ("gives up", i, share), put(w, i, n)

    def take(self, w: World, i: int, m: Member) -> Iterator[Step[World]]:
        epoch, owners = m.record
        silent = self.over_mark if self.has["mark"] else self.scope.wait
        for share, owner in enumerate(owners):
            if owner == i or (owner != FREE and m.silent[share] < silent):
                continue
            change = (epoch + self.has["raise"], with_owner(owners, share, i))
            ages: Iterable[int] = (m.lease,)
            if m.lease < 0:  # no record names it, so its heartbeats weren't looked at so far
                ages = range(self.scope.limit) if self.scope.lossy else (0,)
            for age in ages:
                n = replace(m, change=change, lease=age)
                newest = w.newest if w.newest[i] else (*w.newest[:i], HEARTBEAT, *w.newest[i + 1 :])
                rank = NEVER if age and m.lease < 0 else 4
                yield rank, ("takes", i, share), replace(put(w, i, n), newest=newest)

    def to_end(self, w: World, i: int, m: Member) -> Iterator[Step[World]]:
        has = self.has
        if m.ending != FREE or not m.good or not has["mark"]:
            return
        wait, ages = self.scope.wait, dict(zip(m.record[1], m.silent, strict=True))
        for session, age in ages.items():
            # at once for the own former session, so here everybody may for each that is over
            is_over = session >= self.scope.members and age < wait
            refused = has["end cas"] and any(about(x) == session for x in m.unread)
            if not (age == wait or is_over) or (refused and has["mark back"]):
                continue
            n = replace(m, ending=session)
            if not has["mark back"]:
                n = self.see_heartbeat(i, m, (END, session, 0))
            yield 3 if age == wait else NEVER, ("ends", i, session), put(w, i, n)

    def crashes(self, w: World) -> Iterator[Step[World]]:
        if w.faults.crashes:
            faults = w.faults._replace(crashes=w.faults.crashes - 1)
            for i, m in enumerate(w.members):
                if m.up:
                    down = Member(up=False, silent=self.heard, change=m.change, ending=m.ending)
                    crashed = replace(self.lapse(put(w, i, down), i), faults=faults)
                    yield NEVER, ("crashes", i), crashed

    def administrator(self, w: World) -> Iterator[Step[World]]:
        """Somebody deletes and puts back what they shouldn't touch."""
        f = w.faults
        if f.put_back:
            yield from self.put_back(w)
        if f.deleted and w.record:
            less = replace(w, faults=f._replace(deleted=f.deleted - 1))
            yield NEVER, ("record is deleted",), self.land(less, (RECORD, ()))
        for s in range(len(w.newest)):
            if s >= self.scope.members and f.late:
                less = replace(w, faults=f._replace(late=f.late - 1))
                yield NEVER, ("late heartbeat lands", s), self.land(less, (HEARTBEAT, s, 0))
            elif w.newest[s] == HEARTBEAT and f.heartbeats:
                less = replace(w, faults=f._replace(heartbeats=f.heartbeats - 1))
                yield NEVER, ("heartbeat is deleted", s), self.land(less, (DELETION, s, 0))
        if f.buckets:
            lost = [replace(m, change=(), ending=FREE, unread=((ANEW,),) * m.up) for m in w.members]
            yield (
                NEVER,
                ("bucket is recreated",),
                replace(
                    w,
                    record=(),
                    members=tuple(lost),
                    newest=("",) * len(w.newest),
                    faults=f._replace(buckets=f.buckets - 1),
                ),
            )

    def put_back(self, w: World) -> Iterator[Step[World]]:
        if w.record and not w.copy:
            yield NEVER, ("record is copied", w.record), replace(w, copy=w.record)
        known = self.scope.ahead or all(m.seen >= w.copy[0] for m in w.members if m.up and w.copy)
        if w.copy not in {(), w.record} and known:
            less = replace(w, faults=w.faults._replace(put_back=w.faults.put_back - 1), copy=())
            yield NEVER, ("record is put back", w.copy), self.land(less, (RECORD, w.copy))

    # ---- one state for all that differ only in names

    def tidy(self, w: World) -> World:
        """Names of sessions and shares, and distances between epochs, don't matter."""
        numbers = range(self.scope.shares)
        if len(numbers) == 1:
            return self.tidied(w)
        keys = [self.share_key(w, share) for share in numbers]
        orders = (p for p in permutations(numbers) if [keys[i] for i in p] == sorted(keys))
        same = tuple(numbers)
        return min(self.tidied(w if p == same else self.renamed(w, {}, order=p)) for p in orders)

    def share_key(self, w: World, share: int) -> list[tuple[int, ...]]:
        """Return what's the same under another number of the share, and of the members."""

        def whose(record: Record, i: int) -> int:
            owner = record[1][share] if record else -2
            return -3 if owner == i else min(owner, 0) if owner < self.scope.members else 1

        return sorted(
            (m.silent[share], m.released >> share & 1, whose(m.record, i), whose(m.change, i))
            for i, m in enumerate(w.members)
        )

    def tidied(self, w: World) -> World:
        if w.copy and not w.faults.put_back:
            w = replace(w, copy=())
        records = [w.record, w.copy]
        for m in w.members:
            records += m.record, m.change, m.listed
            records += [x[1] for x in m.unread + m.late if x[0] == RECORD]
            if m.listed and m.calm == self.scope.wait:
                w = put(w, w.members.index(m), replace(m, listed=()))
        records = [record for record in records if record]
        return self.ordered(self.lowered(self.forget(w, records), records))

    def forget(self, w: World, records: list[Record]) -> World:
        """Forget sessions that no record names: the current ones may begin at any time."""
        n = self.scope.members
        named = dict.fromkeys([s for record in records for s in record[1]])
        named.pop(FREE, None)
        for i, m in enumerate(w.members):
            unread = m.unread
            if unread:
                unread = tuple([x for x in unread if about(x) in named or about(x) == FREE])
            lease = m.lease if i in named else -1
            ending = m.ending if m.ending in named else FREE
            if (lease, ending) != (m.lease, m.ending) or len(unread) != len(m.unread):
                w = put(w, i, replace(m, unread=unread, lease=lease, ending=ending))
        old = [s for s in named if s >= n]
        newest = [w.newest[s] if s in named else "" for s in range(n)] + [w.newest[s] for s in old]
        w = replace(w, newest=tuple(newest))
        if old == list(range(n, n + len(old))):
            return w
        return self.renamed(w, {s: n + k for k, s in enumerate(old)})

    def lowered(self, w: World, records: list[Record]) -> World:
        """Epochs matter in relation to each other only."""
        epochs = {record[0] for record in records}.union([m.seen for m in w.members])
        lower = {0: 0}
        last = highest = 0
        for epoch in sorted(epochs - {0}):
            highest += min(epoch - last, self.distance) if last else 1
            lower[epoch] = highest
            last = epoch
        if highest == last:
            return w
        members = [replace(m, seen=lower[m.seen]) for m in w.members]
        return self.renamed(replace(w, members=tuple(members)), {}, lower)

    def ordered(self, w: World) -> World:
        """Put the members into one order."""
        keys = [
            (
                *(m.up, m.good, m.seen, m.lease, m.calm),
                m.released.bit_count(),
                bool(m.record) and m.record[1].count(i),
                len(m.unread),
                len(m.change),
            )
            for i, m in enumerate(w.members)
        ]
        numbers = range(len(keys))
        if len(set(keys)) == len(keys):
            return self.permuted(w, tuple(sorted(numbers, key=keys.__getitem__)))
        orders = [p for p in permutations(numbers) if [keys[i] for i in p] == sorted(keys)]
        return min(self.permuted(w, order) for order in orders)

    def permuted(self, w: World, order: tuple[int, ...]) -> World:
        if order == tuple(range(len(order))):
            return w
        newest = (*[w.newest[i] for i in order], *w.newest[len(order) :])
        w = replace(w, members=tuple([w.members[i] for i in order]), newest=newest)
        return self.renamed(w, {i: k for k, i in enumerate(order)})

    def renamed(
        self,
        w: World,
        sessions: dict[int, int],
        epochs: dict[int, int] | None = None,
        order: tuple[int, ...] = (),
    ) -> World:
        """Give sessions new numbers, and epochs, and put the shares into another *order*."""

        def record(r: Record) -> Record:
            if not r:
                return r
            owners = tuple([sessions.get(s, s) for s in r[1]])
            owners = tuple([owners[share] for share in order]) if order else owners
            return (epochs[r[0]] if epochs else r[0], owners)

        def messages(unread: tuple[Message, ...]) -> tuple[Message, ...]:
            return tuple(
                [
                    (RECORD, record(x[1]))
                    if x[0] == RECORD
                    else x
                    if x[0] == ANEW
                    else (x[0], sessions.get(x[1], x[1]), x[2])
                    for x in unread
                ]
            )

        members = [
            replace(
                m,
                record=record(m.record),
                change=record(m.change),
                listed=record(m.listed),
                unread=messages(m.unread) if m.unread else (),
                late=messages(m.late) if m.late else (),
                ending=sessions.get(m.ending, m.ending),
            )
            for m in w.members
        ]
        if order:
            members = [
                replace(
                    m,
                    silent=tuple([m.silent[share] for share in order]),
                    released=sum((m.released >> s & 1) << k for k, s in enumerate(order)),
                )
                for m in members
            ]
        return replace(w, record=record(w.record), copy=record(w.copy), members=tuple(members))


def with_owner(owners: tuple[int, ...], share: int, owner: int) -> tuple[int, ...]:
    return (*owners[:share], owner, *owners[share + 1 :])
