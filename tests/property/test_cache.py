"""Whatever a store tells and a watch breaks, the cache ends as the store is, and tells how."""

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from natsctl.core.cache.cache import Cache, Invalid
from natsctl.model.store import Applied, Deleted, Listed, Listing, Stored, WatchEvent
from tests.support.stores.sample_objects import THINGS, Thing, value

NAMES = st.sampled_from("abcde")
GROUPS = ("x", "y", "z")


class Play(RuleBasedStateMachine):
    """A plain store, a watch of it that may break at any event, and a subscriber of the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, Stored | Deleted] = {}
        self.revision = 0
        self.incarnation = 1
        self.watching = False
        self.coming: deque[WatchEvent] = deque()  # sent, not taken in
        self.cache = Cache(THINGS, {"group": lambda thing: thing.spec.groups}, self.note)
        self.mirror: dict[str, Stored] = {}  # what the changes told so far add up to
        self.owed: set[str] = set()  # deletions that the subscriber has to be told of
        self.purged = False  # since the last listing
        self.invalid: list[Stored] = []

    def note(self, invalid: Invalid) -> None:
        self.invalid.append(invalid.stored)

    # ---- the store

    @rule(key=NAMES, text=st.text(max_size=2), groups=st.sets(st.sampled_from(GROUPS)))
    def put(self, key: str, text: str, groups: set[str]) -> None:
        self.write(key, value(text, *groups))

    @rule(key=NAMES)
    def put_what_is_invalid(self, key: str) -> None:
        self.write(key, b"%d.%d is no JSON" % (self.incarnation, self.revision))

    def write(self, key: str, text: bytes) -> None:
        self.revision += 1
        stored = self.stored[key] = Stored(key, self.revision, text)
        self.owed.discard(key)
        self.send(Applied(stored))

    @rule(key=NAMES)
    def delete(self, key: str) -> None:
        if isinstance(self.stored.get(key), Stored):
            self.revision += 1
            deleted = self.stored[key] = Deleted(key, self.revision)
            self.owed.add(key)
            self.send(deleted)

    @rule(key=NAMES)
    def purge_behind_everybodys_back(self, key: str) -> None:
        if self.stored.pop(key, None) is not None:
            self.owed.discard(key)
            self.purged = True

    @rule()
    def recreate(self) -> None:
        self.stored.clear()
        self.owed.clear()
        self.revision = 0
        self.incarnation += 1
        self.break_off()

    # ---- the watch

    def send(self, event: WatchEvent) -> None:
        if self.watching:
            self.coming.append(event)

    @rule()
    def break_off(self) -> None:
        self.watching = False
        self.coming.clear()

    @rule()
    def watch(self) -> None:
        newest = sorted(self.stored.values(), key=lambda at: at.revision)
        shown = (at if isinstance(at, Deleted) else Applied(at) for at in newest)
        self.coming = deque((Listing(str(self.incarnation)), *shown, Listed(self.revision)))
        self.watching, self.purged = True, False

    @rule(count=st.integers(1, 8))
    def take(self, count: int) -> None:
        for _ in range(min(count, len(self.coming))):
            for change in self.cache.apply(self.coming.popleft()):
                assert change.before == self.mirror.get(change.key)
                assert (change.before, change.after) == (None, None) or (
                    change.before != change.after
                )
                if change.after is None:
                    self.mirror.pop(change.key, None)
                    self.owed.discard(change.key)
                else:
                    self.mirror[change.key] = change.after

    @precondition(lambda self: self.watching)
    @rule()
    def take_everything(self) -> None:
        self.take(len(self.coming))
        self.agrees()

    # ---- what must be so

    @invariant()
    def the_cache_is_what_its_changes_told(self) -> None:
        assert set(self.cache.keys()) == set(self.mirror)
        assert {key: self.cache.get(key) for key in self.mirror} == self.mirror
        assert len(self.cache) == len(self.mirror)

    @invariant()
    def its_index_is_what_a_search_would_find(self) -> None:
        objects = {key: THINGS.decode(stored.value) for key, stored in self.mirror.items()}
        for group in GROUPS:
            found = [self.mirror[key] for key in sorted(objects) if in_group(objects[key], group)]
            assert self.cache.by_index("group", group) == found
        grouped = {group for obj in objects.values() for group in obj.spec.groups}
        assert set(self.cache.index_values("group")) == grouped
        assert self.cache.indexed("group") == sum(bool(obj.spec.groups) for obj in objects.values())

    @invariant()
    def an_invalid_object_is_told_once(self) -> None:
        assert len(set(map(repr, self.invalid))) == len(self.invalid)

    def agrees(self) -> None:
        """Check that the cache is as the store is, once everything was taken in."""
        assert self.cache.complete.is_set()
        assert self.cache.incarnation == str(self.incarnation)
        assert self.cache.revision == self.revision
        if self.purged:
            return
        alive = {key: at for key, at in self.stored.items() if isinstance(at, Stored)}
        valid = {key: at for key, at in alive.items() if THINGS.valid(at.value)}
        invalid = {key: at for key, at in alive.items() if key not in valid}
        assert {key: at for key, at in self.mirror.items() if key not in invalid} == valid
        assert {key: at.stored for key, at in self.cache.invalid.items()} == invalid
        assert {key for key in "abcde" if key in self.cache} == set(alive)
        assert {key: self.cache.newest(key) for key in alive} == alive
        assert self.owed == set()


def in_group(thing: Thing, group: str) -> bool:
    return group in thing.spec.groups


TestCache = Play.TestCase
TestCache.settings = settings(deadline=None, max_examples=150, stateful_step_count=40)
