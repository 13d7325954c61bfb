"""Names the work that several processes divide among them, so that strangers do not take part."""

import msgspec


class Work(msgspec.Struct, frozen=True, omit_defaults=True):
    """A controller's work: the kind of its primaries, and the installation.

    Each is empty if it is not known, as in records of version 0.1.
    """

    owner: str = ""
    installation: str = ""

    def same(self, other: "Work") -> bool:
        """Return whether both may be the same work: what both know does not differ."""
        pairs = ((self.owner, other.owner), (self.installation, other.installation))
        return all(not one or not two or one == two for one, two in pairs)

    def __str__(self) -> str:
        owner = self.owner or "an unknown kind"
        return f"{owner} of installation {self.installation}" if self.installation else owner


NO_WORK = Work()
