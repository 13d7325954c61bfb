"""Property tests of a split dict: it is a dict, and an iteration misses no key that stays."""

from hypothesis import given
from hypothesis import strategies as st

from natsctl.split_dict import CurrentKeys, SplitDict

KEYS = st.integers(0, 8).map(lambda number: f"key.{number}")  # few, so that steps meet a key again
WHOLE_MAX = 4


def split_dict(keys: set[str]) -> SplitDict[None]:
    table = SplitDict[None](whole_max=WHOLE_MAX)
    for key in keys:
        table[key] = None
    return table


@given(st.lists(st.tuples(KEYS, st.none() | st.integers())))
def test_a_split_dict_behaves_like_a_dict(steps: list[tuple[str, int | None]]) -> None:
    table, expected = SplitDict[int](whole_max=WHOLE_MAX), dict[str, int]()
    for key, value in steps:
        if value is None:
            assert table.pop(key) == expected.pop(key, None)
        else:
            table[key] = expected[key] = value
        assert table.get(key) == expected.get(key)
        assert (key in table) == (key in expected)
    assert len(table) == len(expected)
    assert bool(table) == bool(expected)
    assert dict(table) == expected


@given(st.data())
def test_keys_that_stay_are_iterated_once(data: st.DataObject) -> None:
    """Between two keys, keys are added, removed, or the whole dict is replaced."""
    staying = data.draw(st.sets(KEYS))
    tables = [split_dict(staying | data.draw(st.sets(KEYS)))]
    start = data.draw(st.floats(0, 1))
    iterated: list[str] = []
    for key in CurrentKeys(lambda: tables[-1]).iterate(start):
        iterated.append(key)
        match data.draw(st.sampled_from(["nothing", "add", "remove", "replace"])):
            case "add":
                tables[-1][data.draw(KEYS)] = None
            case "remove":
                removed = data.draw(KEYS)
                if removed not in staying:
                    tables[-1].pop(removed)
            case "replace":
                tables.append(split_dict(staying | data.draw(st.sets(KEYS))))
            case _:
                pass
    assert len(iterated) == len(set(iterated))
    assert staying <= set(iterated)


@given(st.sets(KEYS), st.sets(KEYS))
def test_a_dict_that_changes_yields_each_key_once_that_stays(
    staying: set[str], leaving: set[str]
) -> None:
    table, iterated = split_dict(staying), list[str]()
    for key in table:
        iterated.append(key)
        for leaving_key in leaving - staying:
            if table.pop(leaving_key) is None:
                table[leaving_key] = None
    assert len(iterated) == len(set(iterated))
    assert staying <= set(iterated)
