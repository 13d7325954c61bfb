"""A set that stores only an eight-byte hash of each key."""

from array import array
from bisect import bisect_left

_SHARDS = 4096  # many short sorted arrays, so that an insertion moves few items


class Fingerprints:
    """A set of key hashes; `size` is their number.

    Two keys with the same hash count as one. The probability of such a pair among a million keys is
    about one in thirty million.
    """

    def __init__(self) -> None:
        self._shards: dict[int, array[int]] = {}
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def __contains__(self, key: str) -> bool:
        fingerprint = hash(key)
        shard = self._shards.get(fingerprint % _SHARDS)
        return shard is not None and _locate(shard, fingerprint)[1]

    def add(self, key: str) -> None:
        """Add *key*."""
        fingerprint = hash(key)
        shard = self._shards.setdefault(fingerprint % _SHARDS, array("q"))
        index, present = _locate(shard, fingerprint)
        if not present:
            shard.insert(index, fingerprint)
            self.size += 1

    def discard(self, key: str) -> None:
        """Remove *key*, if present."""
        fingerprint = hash(key)
        shard = self._shards.get(fingerprint % _SHARDS)
        if shard is None:
            return
        index, present = _locate(shard, fingerprint)
        if present:
            del shard[index]
            self.size -= 1
            if not shard:
                del self._shards[fingerprint % _SHARDS]


def _locate(shard: "array[int]", fingerprint: int) -> tuple[int, bool]:
    """Return the index of the fingerprint or of its insertion, and whether it is present."""
    index = bisect_left(shard, fingerprint)
    return index, index < len(shard) and shard[index] == fingerprint
