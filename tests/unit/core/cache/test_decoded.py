"""An object that validation decoded is handed out for the first read of its state."""

from natsctl import kv
from natsctl.core.table import KEPT_MAX, Cache
from natsctl.model.store import Applied, Listed, Listing, Stored


def stored(key: str, revision: int = 1) -> Stored:
    return Stored(key, revision, b"{}")


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


def test_an_object_of_another_state_is_not_handed_out() -> None:
    decoded: list[bytes] = []
    cache = live_cache(decoded)
    cache.decode(stored("a", 1))
    assert len(decoded) == 2


def test_the_number_of_kept_objects_is_bounded() -> None:
    cache = live_cache([])
    for number in range(KEPT_MAX + 1):
        cache.put([stored(f"k{number}", 3 + number)])
    assert len(cache.decoded) <= KEPT_MAX
