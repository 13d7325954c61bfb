"""Matching of keys by subject patterns."""

from typing import Any

import pytest

from natsctl import Kind, kv
from natsctl.errors import InvalidKeyError
from natsctl.model.keys import check_key, matches


@pytest.mark.parametrize(
    ("pattern", "key", "fits"),
    [
        (">", "a", True),
        (">", "a.b.c", True),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.>", "ab.c", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("*.b", "b", False),
        ("*.b.>", "a.b.c", True),
        ("*.b.>", "a.c.c", False),
        ("a", "a", True),
        ("a", "b", False),
        ("a.b", "a-b", False),
        ("a+", "aa", False),
        ("a/b=c", "a/b=c", True),
    ],
)
def test_a_pattern_matches_keys_like_a_nats_subject(pattern: str, key: str, fits: bool) -> None:  # noqa: FBT001 - a test parameter
    assert matches(pattern, key) is fits


def test_a_kind_holds_the_keys_that_match_its_pattern() -> None:
    part = kv(dict, bucket="apps", keys="east.>")
    assert (part.holds("east.shop"), part.holds("west.shop")) == (True, False)
    assert Kind(dict, "Anything").holds("any-key")


@pytest.mark.parametrize("key", [5, None, b"a"])
def test_a_key_of_another_type_is_an_error_that_names_it(key: Any) -> None:
    with pytest.raises(InvalidKeyError, match=f"key {key!r}: a key is a str, not "):
        check_key(key)
