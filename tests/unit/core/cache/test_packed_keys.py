"""Packed keys take less memory than a table of objects."""

import tracemalloc
from collections.abc import Callable

from natsctl.core.table import PackedKeys, Unread

COUNT = 50_000


def size_of(fill: Callable[[], object]) -> int:
    """Return the bytes that the result of *fill* takes."""
    tracemalloc.start()
    result = fill()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del result
    return size


def packed() -> PackedKeys:
    keys = PackedKeys()
    for number in range(COUNT):
        keys.put(f"team.shop-{number}", 1_000_000 + number)
    return keys


def table() -> dict[str, Unread]:
    keys = (f"team.shop-{number}" for number in range(COUNT))
    return {key: Unread(key, 1_000_000 + number, b"") for number, key in enumerate(keys)}


def test_packed_keys_take_half_of_the_memory_of_a_table() -> None:
    assert size_of(packed) < size_of(table) / 2
