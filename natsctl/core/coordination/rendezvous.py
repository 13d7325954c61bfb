"""Whose a key is, among several: rendezvous hashing.

Everybody who knows the same members comes to the same owner, and nobody keeps a table. When one
comes, what moves goes to it; when one goes, what moves was its own.

Source: Thaler and Ravishankar, A Name-Based Mapping Scheme for Rendezvous, 1996.
"""

from collections.abc import Hashable, Iterable
from hashlib import blake2b

BYTES = 8


class MemberSet:
    """Members among whom keys are divided, evenly as chance has it.

    Two views of the same members are equal. Without members nobody owns anything.
    """

    def __init__(self, members: Iterable[str] = ()) -> None:
        self.members = tuple(sorted(set(members)))
        self._seeds = [(member, _seed(member)) for member in self.members]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemberSet) and other.members == self.members

    def __hash__(self) -> int:
        return hash(self.members)

    def __repr__(self) -> str:
        return f"MemberSet({', '.join(self.members)})"

    def includes(self, other: "MemberSet") -> bool:
        """Say whether all members of the other view are members here too.

        Then whoever of them has a key here has it there as well: it has fewer to prevail over.
        """
        return set(other.members) <= set(self.members)

    def owner(self, key: Hashable) -> str | None:
        """Return who has the key: the member whose hash together with it is the greatest."""
        text = str(key).encode()
        best, owner = b"", None
        for member, seed in self._seeds:
            drawn = blake2b(text, digest_size=BYTES, key=seed).digest()
            if drawn >= best:
                best, owner = drawn, member
        return owner


def _seed(member: str) -> bytes:
    return blake2b(member.encode(), digest_size=blake2b.MAX_KEY_SIZE // 4).digest()
