"""A dict of many keys grows in small parts, in the order of insertion while it is small."""

from collections.abc import Iterator
from itertools import islice

import pytest

from natsctl.split_dict import PARTS, WHOLE_MAX, CurrentKeys, SplitDict

FEW = [f"key-{number}" for number in range(WHOLE_MAX)]
MANY = [f"key-{number}" for number in range(3 * WHOLE_MAX)]


def filled(keys: list[str]) -> SplitDict[int]:
    table = SplitDict[int]()
    for number, key in enumerate(keys):
        table[key] = number
    return table


@pytest.fixture(scope="module")
def many() -> SplitDict[int]:
    return filled(MANY)


def test_a_few_keys_have_the_order_of_their_insertion() -> None:
    small = filled(FEW)
    assert not small.is_split
    assert list(small) == FEW


def test_many_keys_are_split_into_small_parts(many: SplitDict[int]) -> None:
    sizes = [len(many.part(number)) for number in range(PARTS)]
    assert sum(sizes) == len(MANY)
    assert max(sizes) < 2 * len(MANY) / PARTS


def test_many_keys_are_split(many: SplitDict[int]) -> None:
    assert many.is_split


def test_a_split_dict_is_not_split_again() -> None:
    table = SplitDict[int](whole_max=1)
    for number, key in enumerate(MANY[:1000]):
        table[key] = number
    assert set(table) == set(MANY[:1000])


def test_each_key_of_many_has_its_value(many: SplitDict[int]) -> None:
    assert dict(many) == {key: number for number, key in enumerate(MANY)}


def test_the_values_have_the_order_of_the_keys(many: SplitDict[int]) -> None:
    assert dict(zip(many, many.each_value(), strict=True)) == dict(many)


def test_a_missing_key_raises(many: SplitDict[int]) -> None:
    with pytest.raises(KeyError):
        many["missing"]
    assert many.get("missing", 0) == 0


def test_draining_removes_one_key_per_step() -> None:
    table = filled(MANY)
    steps: Iterator[None] = table.drain()
    assert sum(1 for _ in islice(steps, 100)) == 100
    assert len(table) == len(MANY) - 100
    assert sum(1 for _ in steps) == len(MANY) - 100
    assert not table


@pytest.mark.parametrize("keys", [FEW, MANY], ids=["few", "many"])
def test_an_iteration_begins_at_a_share_of_the_keys(keys: list[str]) -> None:
    table = filled(keys)
    half = list(CurrentKeys(lambda: table).iterate(0.5))
    assert len(half) == len(keys)
    first = list(CurrentKeys(lambda: table)).index(half[0])
    assert 0.45 < first / len(keys) < 0.55


@pytest.mark.parametrize("start", [0.0, 0.3, 0.9])
def test_an_iteration_continues_in_a_dict_that_is_not_split(start: float) -> None:
    tables, iterated = [SplitDict[int](whole_max=1), SplitDict[int]()], list[str]()
    for number, key in enumerate(MANY[:1000]):
        for table in tables:
            table[key] = number
    for key in CurrentKeys(lambda: tables[0]).iterate(start):
        iterated.append(key)
        if len(iterated) == 100:
            tables.pop(0)
    assert sorted(iterated) == sorted(MANY[:1000])


def test_the_keys_of_the_current_dict_are_a_set() -> None:
    tables = [filled(["a", "b"]), filled(["b", "c"])]
    keys = CurrentKeys(lambda: tables[0])
    assert keys >= {"a", "b"}
    tables.pop(0)
    assert keys & {"a", "b"} == {"b"}
    assert repr(keys) == "<2 keys>"
