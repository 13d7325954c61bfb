"""Finds the member that owns a key by rendezvous hashing.

All processes that know the same members find the same owner without a table. If a member joins,
only the keys that move to it change their owner. If a member leaves, only its own keys do.

Source: Thaler and Ravishankar, A Name-Based Mapping Scheme for Rendezvous, 1996.
"""

from collections.abc import Callable, Hashable, Iterable
from hashlib import blake2b
from typing import NamedTuple

BYTES = 8

Seeded = Callable[[], blake2b]
"""Returns a new hash that is seeded with the name of a member."""


class MemberSet:
    """Members that divide the keys among them, about evenly.

    Sets with the same members are equal. An empty set owns no key.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = tuple(sorted(set(names)))
        hashes = [blake2b(digest_size=BYTES, key=_seed(name)) for name in self.names]
        # a copy of a seeded hash is faster than a new one
        self._hashes = [
            (name, seeded.copy) for name, seeded in zip(self.names, hashes, strict=True)
        ]
        self._others: dict[str, _Others] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemberSet) and other.names == self.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"MemberSet({', '.join(self.names)})"

    def includes(self, other: "MemberSet") -> bool:
        """Return whether all members of the other set are members of this one.

        A key that one of these members owns here is then its own in the other set too, where it
        competes with fewer members.
        """
        return set(other.names) <= set(self.names)

    def owner(self, key: Hashable) -> str | None:
        """Return the member whose hash together with the key is the greatest; None if empty."""
        text = str(key).encode()
        greatest, owner = b"", None
        for name, seeded in self._hashes:
            digest = _digest(seeded, text)
            if digest >= greatest:
                greatest, owner = digest, name
        return owner

    def gives(self, key: Hashable, name: str) -> bool:
        """Return whether this member is the owner of the key.

        This is faster than `owner`, because the first greater hash of another member decides.
        """
        other_hashes = self._others.get(name)
        if other_hashes is None:
            other_hashes = self._others[name] = self._split(name)
        if other_hashes.own is None or len(self.names) == 1:
            return other_hashes.own is not None
        text = str(key).encode()
        member_hash = other_hashes.own()
        member_hash.update(text)
        digest = member_hash.digest()
        for seeded in other_hashes.before:
            if _digest(seeded, text) > digest:
                return False
        for seeded in other_hashes.after:  # noqa: SIM110 - a generator is slower
            if _digest(seeded, text) >= digest:
                return False
        return True

    def _split(self, name: str) -> "_Others":
        hashes = dict(self._hashes)
        before = tuple(seeded for member, seeded in self._hashes if member < name)
        after = tuple(seeded for member, seeded in self._hashes if member > name)
        return _Others(hashes.get(name), before, after)


class _Others(NamedTuple):
    """The hash of a member, if it is one, and those of the members before and after it."""

    own: Seeded | None
    before: tuple[Seeded, ...]
    after: tuple[Seeded, ...]


NO_MEMBERS = MemberSet()


def _digest(seeded: Seeded, text: bytes) -> bytes:
    member_hash = seeded()
    member_hash.update(text)
    return member_hash.digest()


def _seed(member: str) -> bytes:
    return blake2b(member.encode(), digest_size=blake2b.MAX_KEY_SIZE // 4).digest()
