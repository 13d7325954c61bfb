"""Property tests of fingerprints: they contain the same keys as a set."""

from hypothesis import given
from hypothesis import strategies as st

from natsctl.jetstream.watch import Fingerprints

COUNT = 6  # of keys, few, so that steps meet a key again
KEYS = st.integers(0, COUNT - 1).map(lambda number: f"key.{number}")


@given(st.lists(st.tuples(st.booleans(), KEYS)))
def test_fingerprints_behave_like_a_set_of_keys(steps: list[tuple[bool, str]]) -> None:
    fingerprints, keys = Fingerprints(), set[str]()
    for add, key in steps:
        (fingerprints.add if add else fingerprints.discard)(key)
        (keys.add if add else keys.discard)(key)
    assert len(fingerprints) == len(keys)
    assert {f"key.{number}" for number in range(COUNT) if f"key.{number}" in fingerprints} == keys


def test_a_hundred_thousand_keys_have_different_fingerprints() -> None:
    fingerprints = Fingerprints()
    for number in range(100_000):
        fingerprints.add(f"key.{number}")
    assert len(fingerprints) == 100_000
    assert "key.100000" not in fingerprints


def test_a_key_that_leaves_takes_no_other_key_with_it() -> None:
    fingerprints, keys = Fingerprints(), [f"key.{number}" for number in range(20_000)]
    for key in keys[:10_000]:
        fingerprints.add(key)
    for key in keys[5_000:]:  # half of them are not there
        fingerprints.discard(key)
    assert [key for key in keys if key in fingerprints] == keys[:5_000]
