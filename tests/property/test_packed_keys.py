"""Property tests of packed keys: they have the same keys and revisions as a dictionary."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from natsctl.core.table import PackedKeys

FEW = 3  # byte strings, so that each has several keys
TEXTS = ["a", "aa", "ab", "b", "ba", "1", "11", "a1", "a.b/c", "ÿ", "þ", "a\0", "日本"]
KEYS = st.sampled_from(TEXTS)
REVISIONS = st.sampled_from([0, 1, 9, 10, 255, 254, 1 << 16, (1 << 63) - 1])


class PackedLikeADictionary(RuleBasedStateMachine):
    """Changes packed keys and a dictionary in the same way."""

    def __init__(self) -> None:
        super().__init__()
        self.packed = PackedKeys(FEW)
        self.model: dict[str, int] = {}

    @rule(key=KEYS, revision=REVISIONS)
    def put(self, key: str, revision: int) -> None:
        self.packed.put(key, revision)
        self.model[key] = revision

    @rule(key=KEYS, revision=REVISIONS)
    def replace(self, key: str, revision: int) -> None:
        assert self.packed.replace(key, revision) == (key in self.model)
        if key in self.model:
            self.model[key] = revision

    @rule(key=KEYS)
    def remove(self, key: str) -> None:
        self.packed.remove(key)
        self.model.pop(key, None)

    @invariant()
    def has_the_same_keys(self) -> None:
        assert sorted(self.packed) == sorted(self.model)
        assert len(self.packed) == len(self.model)

    @invariant()
    def has_the_same_revisions(self) -> None:
        assert {key: self.packed.get(key) for key in TEXTS} == {
            key: self.model.get(key) for key in TEXTS
        }
        assert {key for key in TEXTS if key in self.packed} == self.model.keys()


TestPackedKeys = PackedLikeADictionary.TestCase


@given(st.sets(KEYS), st.lists(st.tuples(st.booleans(), KEYS)))
def test_keys_that_stay_are_returned_once_while_others_change(
    before: set[str], changes: list[tuple[bool, str]]
) -> None:
    packed, returned, remaining = PackedKeys(FEW), list[str](), list(changes)
    for key in before:
        packed.put(key, 1)
    for key in packed:
        returned.append(key)
        if remaining:
            added, changed = remaining.pop()
            if added:
                packed.put(changed, 2)
            else:
                packed.remove(changed)
    touched = {key for _, key in changes}
    assert sorted(key for key in returned if key not in touched) == sorted(before - touched)


@given(st.sets(KEYS))
def test_drained_keys_are_gone(keys: set[str]) -> None:
    packed = PackedKeys(FEW)
    for key in keys:
        packed.put(key, 1)
    for _ in range(FEW):
        packed.drain()
    assert not len(packed)
    packed.drain()  # nothing is left


def filled() -> PackedKeys:
    packed = PackedKeys(FEW)
    for number in range(20):
        packed.put(f"k{number}", 1)
    return packed


def test_a_drain_removes_a_part_of_the_keys() -> None:
    packed = filled()
    packed.drain()
    assert 0 < len(packed) < 20


def test_keys_are_added_after_all_keys_were_drained() -> None:
    packed = filled()
    for _ in range(FEW):
        packed.drain()
    for number in range(20):
        packed.put(f"k{number}", 2)
    assert sorted(packed) == sorted(f"k{number}" for number in range(20))


def test_an_iteration_ends_when_the_keys_are_drained() -> None:
    packed = PackedKeys(FEW)
    for key in TEXTS:
        packed.put(key, 1)
    keys = iter(packed)
    next(keys)
    for _ in range(FEW):
        packed.drain()
    assert len(list(keys)) < len(TEXTS)
