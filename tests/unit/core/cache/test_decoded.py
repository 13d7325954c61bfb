"""An object that validation decoded is handed out for the first read of its state."""

from natsctl import kv
from natsctl.core.table import KEPT_MAX, Cache, DecodedObjects
from natsctl.model.store import Applied, Listed, Listing, Stored


def stored(key: str, revision: int = 1) -> Stored:
    return Stored(key, revision, b"{}")


def test_an_object_is_taken_once() -> None:
    objects, state = DecodedObjects[object](), stored("a")
    obj = object()
    objects.keep(state, obj)
    assert objects.take(state) is obj
    assert objects.take(state) is None


def test_an_object_of_another_state_is_not_taken() -> None:
    objects = DecodedObjects[object]()
    objects.keep(stored("a", 2), object())
    assert objects.take(stored("a", 1)) is None


def test_the_number_of_kept_objects_is_bounded() -> None:
    objects = DecodedObjects[object]()
    states = [stored(f"k{number}") for number in range(KEPT_MAX + 1)]
    for state in states:
        objects.keep(state, state.key)
    assert objects.take(states[-1]) == states[-1].key
    assert objects.take(states[0]) is None


def live_cache(decoded: list[bytes], **indexes: object) -> Cache[dict[str, int]]:
    """Return a cache with one live object, whose decoder records its calls."""

    def decoder(value: bytes) -> dict[str, int]:
        decoded.append(value)
        return {}

    cache = Cache(kv(dict[str, int], bucket="b", decoder=decoder), indexes)  # type: ignore[arg-type]  # one function
    for event in (Listing("1"), Listed(1), Applied(stored("a", 2))):
        list(cache.apply(event))
    return cache


def read(cache: Cache[dict[str, int]]) -> dict[str, int]:
    state = cache.get("a")
    assert state is not None
    return cache.decode(state)


def test_a_live_object_is_decoded_once_for_its_validation_and_first_read() -> None:
    decoded: list[bytes] = []
    cache = live_cache(decoded)
    first = read(cache)
    assert len(decoded) == 1
    first["changed"] = 1
    assert read(cache) == {}
    assert len(decoded) == 2


def test_an_object_that_an_index_may_hold_is_not_handed_out() -> None:
    indexed: list[dict[str, int]] = []
    cache = live_cache([], index=lambda obj: indexed.append(obj) or ())  # type: ignore[func-returns-value]
    assert all(read(cache) is not obj for obj in indexed)
