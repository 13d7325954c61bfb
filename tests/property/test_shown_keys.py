"""Property tests of the keys that a cache was shown: they exist by the events that it has taken."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from natsctl.core.table import Keeping, Table
from natsctl.model.store import (
    Applied,
    Deleted,
    IllegalKey,
    Listed,
    Listing,
    Stored,
    WatchEvent,
)
from tests.support.stores.sample_objects import THINGS, Thing, value

KEYS = ("a", "b", "c", "d")
VALID, INVALID = value("text"), b"no JSON"

Keys = set[str]
Step = Callable[[Table[Thing], Keys, Keys], None]
"""Changes a cache, the keys that exist by its events, and the keys whose values it keeps."""


def event(event: WatchEvent) -> Step:
    def take(cache: Table[Thing], existing: Keys, _kept: Keys) -> None:
        list(cache.apply(event))
        match event:
            case Applied(stored):
                existing.add(stored.key)
            case Deleted(key):
                existing.discard(key)
            case Listing():
                existing.clear()
            case _:
                pass

    return take


def fill(stored: Stored) -> Step:
    return lambda cache, _existing, _kept: void(cache.fill(stored))


def release(key: str) -> Step:
    return lambda cache, _existing, _kept: cache.release(key)


def keep(keys: Keys) -> Step:
    def change(_cache: Table[Thing], _existing: Keys, kept: Keys) -> None:
        kept.clear()
        kept.update(keys)

    return change


def void(_: object) -> None:
    """Ignore a result."""


keys = st.sampled_from(KEYS)
objects = st.builds(Stored, keys, st.integers(1, 3), st.sampled_from([VALID, INVALID]))
steps = st.one_of(
    objects.map(Applied).map(event),
    st.builds(Deleted, keys, st.integers(1, 3)).map(event),
    st.builds(IllegalKey, st.just("\\xff"), st.just(1), st.booleans()).map(event),
    st.just(event(Listing("one"))),
    st.just(event(Listed(3))),
    objects.map(fill),
    keys.map(release),
    st.sets(keys).map(keep),
)


@given(st.lists(steps, max_size=30), st.booleans())
def test_the_shown_keys_exist_by_the_events(changes: list[Step], is_partial: bool) -> None:  # noqa: FBT001 - hypothesis gives it
    existing, kept = Keys(), Keys(KEYS[:2])
    keeping = Keeping(kept.__contains__) if is_partial else None
    cache = Table(THINGS, keeping=keeping)
    shown = cache.shown
    for change in changes:
        change(cache, existing, kept)
        assert sorted(shown) == sorted(existing)
        assert len(shown) == len(existing)
        assert {key for key in KEYS if key in shown} == existing
