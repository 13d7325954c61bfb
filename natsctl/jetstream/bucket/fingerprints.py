"""A set of keys in eight bytes each, for keys that only have to be recognized."""

from array import array
from bisect import bisect_left

_SHARDS = 4096  # keeps each sorted array short, so that an insertion moves little


class Fingerprints:
    """Remembers keys by their hash.

    Two keys with the same hash count as one. In a million keys, the chance of such a pair is about
    one in thirty million.
    """

    def __init__(self) -> None:
        self._shards: dict[int, array[int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: str) -> bool:
        fingerprint = hash(key)
        shard = self._shards.get(fingerprint % _SHARDS)
        return shard is not None and _at(shard, fingerprint)[1]

    def add(self, key: str) -> None:
        """Remember *key*."""
        fingerprint = hash(key)
        shard = self._shards.setdefault(fingerprint % _SHARDS, array("q"))
        index, known = _at(shard, fingerprint)
        if not known:
            shard.insert(index, fingerprint)
            self._count += 1

    def discard(self, key: str) -> None:
        """Forget *key*."""
        fingerprint = hash(key)
        shard = self._shards.get(fingerprint % _SHARDS)
        if shard is None:
            return
        index, known = _at(shard, fingerprint)
        if known:
            del shard[index]
            self._count -= 1
            if not shard:
                del self._shards[fingerprint % _SHARDS]


def _at(shard: "array[int]", fingerprint: int) -> tuple[int, bool]:
    """Return where the fingerprint is, or belongs, and whether it is there."""
    index = bisect_left(shard, fingerprint)
    return index, index < len(shard) and shard[index] == fingerprint
