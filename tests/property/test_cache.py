"""Property tests of the cache: it equals the store after any events and broken watches."""

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from natsctl.core.cache.cache import Cache, Invalid
from natsctl.model.store import Applied, Deleted, Listed, Listing, Stored, WatchEvent
from tests.support.stores.sample_objects import THINGS, Thing, value

NAMES = st.sampled_from("abcde")
GROUPS = ("x", "y", "z")


class CacheMachine(RuleBasedStateMachine):
    """A model of a store, a watch that can break at any event, and a subscriber of the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, Stored | Deleted] = {}
        self.revision = 0
        self.incarnation = 1
        self.watching = False
        self.events: deque[WatchEvent] = deque()  # sent, but not applied to the cache
        self.cache = Cache(THINGS, {"group": lambda thing: thing.spec.groups}, self.note)
        self.mirror: dict[str, Stored] = {}  # the objects according to the changes so far
        self.pending_deletions: set[str] = (
            set()
        )  # keys whose deletion the subscriber must still see
        self.purged = False  # after the last listing
        self.invalid: list[Stored] = []

    def note(self, invalid: Invalid) -> None:
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

    @rule()
    def recreate(self) -> None:
        self.stored.clear()
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
        shown = (state if isinstance(state, Deleted) else Applied(state) for state in newest)
        self.events = deque((Listing(str(self.incarnation)), *shown, Listed(self.revision)))
        self.watching, self.purged = True, False

    @rule(count=st.integers(1, 8))
    def take(self, count: int) -> None:
        for _ in range(min(count, len(self.events))):
            for change in self.cache.apply(self.events.popleft()):
                assert change.before == self.mirror.get(change.key)
                assert (change.before, change.after) == (None, None) or (
                    change.before != change.after
                )
                if change.after is None:
                    self.mirror.pop(change.key, None)
                    self.pending_deletions.discard(change.key)
                else:
                    self.mirror[change.key] = change.after

    @precondition(lambda self: self.watching)
    @rule()
    def take_everything(self) -> None:
        self.take(len(self.events))
        self.check_equal()

    # ---- invariants

    @invariant()
    def the_cache_equals_the_sum_of_its_changes(self) -> None:
        assert set(self.cache.keys()) == set(self.mirror)
        assert {key: self.cache.get(key) for key in self.mirror} == self.mirror
        assert len(self.cache) == len(self.mirror)

    @invariant()
    def the_index_equals_a_search(self) -> None:
        objects = {key: THINGS.decode(stored.value) for key, stored in self.mirror.items()}
        for group in GROUPS:
            matching = [
                self.mirror[key] for key in sorted(objects) if in_group(objects[key], group)
            ]
            assert self.cache.by_index("group", group) == matching
        grouped = {group for obj in objects.values() for group in obj.spec.groups}
        assert set(self.cache.index_values("group")) == grouped
        assert self.cache.indexed("group") == sum(bool(obj.spec.groups) for obj in objects.values())

    @invariant()
    def an_invalid_object_is_reported_once(self) -> None:
        assert len(set(map(repr, self.invalid))) == len(self.invalid)

    def check_equal(self) -> None:
        """Check that the cache equals the store once all events are applied."""
        assert self.cache.synced.is_set()
        assert self.cache.incarnation == str(self.incarnation)
        assert self.cache.revision == self.revision
        if self.purged:
            return
        alive = {key: state for key, state in self.stored.items() if isinstance(state, Stored)}
        valid = {key: state for key, state in alive.items() if THINGS.valid(state.value)}
        invalid = {key: state for key, state in alive.items() if key not in valid}
        assert {key: state for key, state in self.mirror.items() if key not in invalid} == valid
        assert {key: entry.stored for key, entry in self.cache.invalid.items()} == invalid
        assert {key for key in "abcde" if key in self.cache} == set(alive)
        assert {key: self.cache.newest(key) for key in alive} == alive
        assert self.pending_deletions == set()


def in_group(thing: Thing, group: str) -> bool:
    return group in thing.spec.groups


TestCache = CacheMachine.TestCase
TestCache.settings = settings(stateful_step_count=40)
