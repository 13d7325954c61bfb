"""An index finds the keys of objects by their values."""

from natsctl.core.table import Index


def sample() -> Index[str]:
    index = Index[str]("words", str.split)
    for key in ("aa", "bb", "cc"):
        index.put(key, ("xx",))
    return index


def test_all_keys_of_a_value_are_found() -> None:
    assert sorted(sample().keys("xx")) == ["aa", "bb", "cc"]
    assert sorted(sample().keys("yy")) == []


def test_removed_keys_are_not_found() -> None:
    index = sample()
    for key, remaining in (("bb", ["aa", "cc"]), ("aa", ["cc"]), ("cc", [])):
        index.remove(key)
        assert key not in index
        assert sorted(index.keys("xx")) == remaining
    assert list(index.values()) == []
    assert len(index) == 0


def test_other_values_replace_the_values_of_a_key() -> None:
    index = sample()
    index.put("aa", ("yy", "zz"))
    index.put("bb", ("yy",))
    index.put("bb", ("yy",))
    assert {value: sorted(index.keys(value)) for value in index.values()} == {
        "xx": ["cc"],
        "yy": ["aa", "bb"],
        "zz": ["aa"],
    }
    assert (index.values_at("aa"), index.values_at("bb"), index.values_at("dd")) == (
        ("yy", "zz"),
        ("yy",),
        (),
    )
    assert "aa" in index


def test_a_key_may_be_its_own_value() -> None:
    index = Index[str]("words", str.split)
    index.put("aa", ("aa",))
    assert (list(index.keys("aa")), index.values_at("aa")) == (["aa"], ("aa",))


def test_a_drained_index_is_empty() -> None:
    index = sample()
    assert len(list(index.drain())) == 4  # three objects, and one value
    assert (len(index), list(index.values())) == (0, [])


def test_a_value_that_the_function_repeats_counts_once() -> None:
    assert sample().values_of("xx yy xx") == ("xx", "yy")
