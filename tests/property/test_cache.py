"""Property tests of the cache: it equals the store after any events and broken watches."""

from collections import deque
from collections.abc import Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from natsctl import Invalid
from natsctl.core.table import Table
from natsctl.model.store import (
    Applied,
    Change,
    Deleted,
    IllegalKey,
    Listed,
    Listing,
    Stored,
    WatchEvent,
)
from tests.support.stores.sample_objects import THINGS, Thing, value

NAMES = st.sampled_from("abcde")
GROUPS = ("x", "y", "z")


class Model:
    """The objects that a reader of the cache should see, computed in the simplest way."""

    def __init__(self) -> None:
        self.valid: dict[str, Stored] = {}
        self.invalid: dict[str, Stored] = {}
        self.illegal: set[str] = set()
        self.revision = 0
        self.incarnation = ""
        self._listing: list[WatchEvent] | None = None

    def apply(self, event: WatchEvent) -> None:
        if isinstance(event, Listing):
            self._listing = [event]
        elif self._listing is None:
            self._follow(event)
        elif isinstance(event, Listed):
            self._end_listing(self._listing, event.revision)
            self._listing = None
        else:
            self._listing.append(event)

    def _end_listing(self, events: list[WatchEvent], revision: int) -> None:
        start = events[0]
        assert isinstance(start, Listing)
        if start.incarnation != self.incarnation:
            self.incarnation, self.revision = start.incarnation, 0
        newest = {e.stored.key if isinstance(e, Applied) else e.key: e for e in events[1:]}  # type: ignore[union-attr]  # keys only
        before, self.valid, self.invalid, self.illegal = self.valid, {}, {}, set()
        for key, event in newest.items():
            if isinstance(event, Applied) and key in before:
                self.valid[key] = before[key]  # if the new state is invalid
            self._follow(event)
        self.revision = max(self.revision, revision)

    def _follow(self, event: WatchEvent) -> None:
        match event:
            case Applied(Stored(key, revision, text) as stored) if THINGS.valid(text):
                self.valid[key] = stored
                self.invalid.pop(key, None)
                self.revision = max(self.revision, revision)
            case Applied(Stored(key, revision) as stored):
                self.invalid[key] = stored
                self.revision = max(self.revision, revision)
            case Deleted(key, revision):
                self.valid.pop(key, None)
                self.invalid.pop(key, None)
                self.revision = max(self.revision, revision)
            case IllegalKey(key, revision, exists):
                (self.illegal.add if exists else self.illegal.discard)(key)
                self.revision = max(self.revision, revision)


class CacheMachine(RuleBasedStateMachine):
    """A store, a watch that can break at any event, and a subscriber of the cache.

    The subscriber takes the changes of an event one by one, and anybody reads in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, Stored | Deleted] = {}
        self.revision = 0
        self.incarnation = 1
        self.illegal = 0  # the revision of a message with an illegal name, 0 without one
        self.watching = False
        self.events: deque[WatchEvent] = deque()  # sent, but not applied to the cache
        self.table = Table(
            THINGS, {"group": lambda stored_thing: stored_thing.spec.groups}, self.note
        )
        self.model = Model()
        self.changes: Iterator[Change[Thing] | None] = iter(())  # of the last event
        self.pending = False  # whether the subscriber has not taken all of them
        self.mirror: dict[str, Stored] = {}  # the objects according to the changes so far
        self.pending_deletions: set[str] = (
            set()
        )  # keys whose deletion the subscriber must still see
        self.purged = False  # after the last listing
        self.invalid: list[Stored] = []

    def note(self, invalid: Invalid) -> None:
        if not invalid.illegal:
            self.invalid.append(invalid.stored)

    # ---- the store

    @rule(key=NAMES, text=st.text(max_size=2), groups=st.sets(st.sampled_from(GROUPS)))
    def put(self, key: str, text: str, groups: set[str]) -> None:
        self.write(key, value(text, *groups))

    @rule(key=NAMES)
    def put_an_invalid_value(self, key: str) -> None:
        self.write(key, b"%d.%d is no JSON" % (self.incarnation, self.revision))

    def write(self, key: str, text: bytes) -> None:
        self.revision += 1
        stored = self.stored[key] = Stored(key, self.revision, text)
        self.pending_deletions.discard(key)
        self.send(Applied(stored))

    @rule(key=NAMES)
    def delete(self, key: str) -> None:
        if isinstance(self.stored.get(key), Stored):
            self.revision += 1
            deleted = self.stored[key] = Deleted(key, self.revision)
            self.pending_deletions.add(key)
            self.send(deleted)

    @rule(key=NAMES)
    def purge_without_an_event(self, key: str) -> None:
        if self.stored.pop(key, None) is not None:
            self.pending_deletions.discard(key)
            self.purged = True

    @rule(exists=st.booleans())
    def write_an_illegal_key(self, *, exists: bool) -> None:
        self.revision += 1
        self.illegal = self.revision if exists else 0
        self.send(IllegalKey("\\xff", self.revision, exists))

    @rule()
    def recreate(self) -> None:
        self.stored.clear()
        self.illegal = 0
        self.pending_deletions.clear()
        self.revision = 0
        self.incarnation += 1
        self.break_off()

    # ---- the watch

    def send(self, event: WatchEvent) -> None:
        if self.watching:
            self.events.append(event)

    @rule()
    def break_off(self) -> None:
        self.watching = False
        self.events.clear()

    @rule()
    def watch(self) -> None:
        newest = sorted(self.stored.values(), key=lambda state: state.revision)
        shown: list[WatchEvent] = [
            state if isinstance(state, Deleted) else Applied(state) for state in newest
        ]
        if self.illegal:
            shown.append(IllegalKey("\\xff", self.illegal))
        self.events = deque((Listing(str(self.incarnation)), *shown, Listed(self.revision)))
        self.watching, self.purged = True, False

    @rule(count=st.integers(1, 8))
    def take(self, count: int) -> None:
        for _ in range(min(count, len(self.events))):
            self.take_all_changes()
            event = self.events.popleft()
            self.changes, self.pending = iter(self.table.apply(event)), True
            self.model.apply(event)

    @rule(count=st.integers(1, 4))
    def take_changes(self, count: int) -> None:
        for _ in range(count):
            if self.pending:
                self.take_change()

    def take_all_changes(self) -> None:
        while self.pending:
            self.take_change()

    def take_change(self) -> None:
        try:
            change = next(self.changes)
        except StopIteration:
            self.pending = False
            return
        if change is None:
            return
        assert change.before == self.mirror.get(change.key)
        assert (change.before, change.after) == (None, None) or (change.before != change.after)
        if change.after is None:
            self.mirror.pop(change.key, None)
            self.pending_deletions.discard(change.key)
        else:
            self.mirror[change.key] = change.after

    @precondition(lambda self: self.watching)
    @rule()
    def take_everything(self) -> None:
        self.take(len(self.events))
        self.take_all_changes()
        self.check_equal()

    # ---- invariants

    @invariant()
    def a_reader_sees_each_event_at_once(self) -> None:
        model = self.model
        assert {key: self.table.get(key) for key in self.table.keys()} == model.valid  # noqa: SIM118 - a cache is no dict
        assert len(self.table) == len(model.valid)
        assert {
            key: state.stored for key, state in self.table.invalid.items() if not state.illegal
        } == model.invalid
        assert {key for key, state in self.table.invalid.items() if state.illegal} == model.illegal
        assert {key: self.table.newest(key) for key in model.invalid} == model.invalid
        assert (self.table.revision, self.table.incarnation) == (model.revision, model.incarnation)

    @precondition(lambda self: not self.pending)
    @invariant()
    def the_cache_equals_the_sum_of_its_changes(self) -> None:
        assert {key: self.table.get(key) for key in self.table.keys()} == self.mirror  # noqa: SIM118 - a cache is no dict

    @invariant()
    def the_index_equals_a_search(self) -> None:
        valid = self.model.valid
        objects = {key: THINGS.decode(stored.value) for key, stored in valid.items()}
        for group in GROUPS:
            matching = [valid[key] for key in sorted(objects) if in_group(objects[key], group)]
            assert self.table.by_index("group", group) == matching
        grouped = {group for obj in objects.values() for group in obj.spec.groups}
        assert set(self.table.index_values("group")) == grouped
        assert self.table.indexed("group") == sum(bool(obj.spec.groups) for obj in objects.values())

    @invariant()
    def an_invalid_object_is_reported_once(self) -> None:
        assert len(set(map(repr, self.invalid))) == len(self.invalid)

    def check_equal(self) -> None:
        """Check that the cache equals the store once all events are applied."""
        assert self.table.synced.is_set()
        assert self.table.incarnation == str(self.incarnation)
        assert self.table.revision == self.revision
        if self.purged:
            return
        alive = {key: state for key, state in self.stored.items() if isinstance(state, Stored)}
        valid = {key: state for key, state in alive.items() if THINGS.valid(state.value)}
        invalid = {key: state for key, state in alive.items() if key not in valid}
        assert {key: state for key, state in self.mirror.items() if key not in invalid} == valid
        entries = self.table.invalid.items()
        assert {key: entry.stored for key, entry in entries if not entry.illegal} == invalid
        assert {key for key in "abcde" if key in self.table} == set(alive)
        assert {key: self.table.newest(key) for key in alive} == alive
        assert self.pending_deletions == set()


def in_group(stored_thing: Thing, group: str) -> bool:
    return group in stored_thing.spec.groups


TestCache = CacheMachine.TestCase
TestCache.settings = settings(stateful_step_count=40)
