"""Property tests of the keys that a cache was shown: they exist by the events that it has taken."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from natsctl.core.table import Keeping, Table
from natsctl.model.store import Applied, Deleted, IllegalKey, Listed, Listing, Stored
from tests.support.stores.sample_objects import THINGS, value

KEYS = ("a", "b", "c", "d")
VALID, INVALID = value("text"), b"no JSON"

keys = st.sampled_from(KEYS)
objects = st.builds(Stored, keys, st.integers(1, 3), st.sampled_from([VALID, INVALID]))
steps = st.one_of(
    objects.map(Applied),
    st.builds(Deleted, keys, st.integers(1, 3)),
    st.builds(IllegalKey, st.just("\\xff"), st.just(1), st.booleans()),
    st.just(Listing("one")),
    st.just(Listed(3)),
    objects,  # read from the store
    keys,  # whose value is released
    st.sets(keys),  # whose values are kept from now on
)


@given(st.lists(steps, max_size=30), st.booleans())
def test_the_shown_keys_exist_by_the_events(changes: list[Any], is_partial: bool) -> None:  # noqa: FBT001 - hypothesis gives it
    existing, kept = set[str](), set(KEYS[:2])
    cache = Table(THINGS, keeping=Keeping(kept.__contains__) if is_partial else None)
    shown = cache.shown
    for change in changes:
        match change:
            case Stored():
                cache.fill(change)
            case str():
                cache.release(change)
            case set():
                kept.clear()
                kept.update(change)
            case _:
                list(cache.apply(change))
        match change:
            case Applied(stored):
                existing.add(stored.key)
            case Deleted(key):
                existing.discard(key)
            case Listing():
                existing.clear()
        assert sorted(shown) == sorted(existing)
        assert len(shown) == len(existing)
        assert {key for key in KEYS if key in shown} == existing
