"""Holds the keys and the revisions of objects in little memory."""

from collections.abc import Iterator

_CHUNKS = 1 << 16  # few keys in each, so that a chunk is searched and copied as fast as a struct
_KEY, _REVISION = b"\xff", b"\xfe"  # precede both in an entry; UTF-8 has neither byte


class PackedKeys:
    """The keys of objects, each with its revision.

    A million keys take about 15 bytes each beside their texts; a table of structs takes 180. The
    keys are divided by their hashes among byte strings, which Python searches fast.

    Keys may be added and removed while the keys are iterated; every other key is returned once.

    Args:
        size: the number of byte strings.
    """

    def __init__(self, size: int = _CHUNKS) -> None:
        self._size = size
        self._chunks: list[bytes] = []  # none before the first key
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: str) -> bool:
        return self._count > 0 and _name(key) in self._chunks[hash(key) % self._size]

    def __iter__(self) -> Iterator[str]:
        for chunk in filter(None, self._chunks):  # almost all are empty if there are few keys
            for entry in chunk.split(_KEY)[1:]:
                yield entry[: entry.index(_REVISION)].decode()

    def get(self, key: str) -> int | None:
        """Return the revision of the key, None if the key is not there."""
        if not self._count:
            return None
        chunk = self._chunks[hash(key) % self._size]
        begin, end = _revision(chunk, _name(key))
        return int(chunk[begin:end]) if begin else None

    def put(self, key: str, revision: int) -> None:
        """Add the key, or replace its revision."""
        if not self.replace(key, revision):
            if not self._chunks:
                self._chunks = [b""] * self._size
            self._chunks[hash(key) % self._size] += b"%b%d" % (_name(key), revision)
            self._count += 1

    def replace(self, key: str, revision: int) -> bool:
        """Replace the revision of the key, and return whether the key is there."""
        if not self._count:
            return False
        number = hash(key) % self._size
        chunk = self._chunks[number]
        begin, end = _revision(chunk, _name(key))
        if begin:
            self._chunks[number] = b"%b%d%b" % (chunk[:begin], revision, chunk[end:])
        return begin > 0

    def remove(self, key: str) -> None:
        """Remove the key, if it is there."""
        if not self._count:
            return
        number, name = hash(key) % self._size, _name(key)
        chunk = self._chunks[number]
        begin, end = _revision(chunk, name)
        if begin:
            self._chunks[number] = chunk[: begin - len(name)] + chunk[end:]
            self._count -= 1

    def drain(self) -> None:
        """Remove some of the keys, so few that other tasks wait for a short time only."""
        while self._count:
            if chunk := self._chunks.pop():
                self._count -= chunk.count(_KEY)
                break
        if not self._count:
            self._chunks = []  # the empty ones too


def _name(key: str) -> bytes:
    """Return the bytes that precede the revision of the key."""
    return b"\xff%b\xfe" % key.encode()


def _revision(chunk: bytes, name: bytes) -> tuple[int, int]:
    """Return where the revision after *name* begins and ends; zeros if there is none."""
    position = chunk.find(name)
    if position < 0:
        return 0, 0
    begin = position + len(name)
    end = chunk.find(_KEY, begin)
    return begin, len(chunk) if end < 0 else end
