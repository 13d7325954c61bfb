"""Finds the member that owns a key by rendezvous hashing.

All processes that know the same members find the same owner without a table. If a member joins,
only the keys that move to it change their owner. If a member leaves, only its own keys do.

Source: Thaler and Ravishankar, A Name-Based Mapping Scheme for Rendezvous, 1996.
"""

from collections.abc import Hashable, Iterable
from hashlib import blake2b

BYTES = 8


class MemberSet:
    """Members that divide the keys among them, about evenly.

    Sets with the same members are equal. An empty set owns no key.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = tuple(sorted(set(names)))
        self._seeds = [(name, _seed(name)) for name in self.names]

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
        for name, seed in self._seeds:
            digest = blake2b(text, digest_size=BYTES, key=seed).digest()
            if digest >= greatest:
                greatest, owner = digest, name
        return owner


NO_MEMBERS = MemberSet()


def _seed(member: str) -> bytes:
    return blake2b(member.encode(), digest_size=blake2b.MAX_KEY_SIZE // 4).digest()
