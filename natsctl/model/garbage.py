"""The limits, plans and results of garbage collection."""

import math

import msgspec

from natsctl.errors import UsageError
from natsctl.model.store import planned_revision


class GarbageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When garbage is collected, and when it would be too much at once.

    A cycle runs every `interval_s`, and deletes an orphan after a grace period of `grace_s`. If it
    would delete more than `count_max` objects, it deletes none. The same holds if it would delete
    more than the fraction `share_max` of all owned objects, and more than `share_from` objects.
    """

    interval_s: float = 30.0
    grace_s: float = 60.0
    count_max: int = 1000
    share_max: float = 0.3
    share_from: int = 10

    def __post_init__(self) -> None:
        """Raise `UsageError` if a number is out of range."""
        if not (0 < self.interval_s < math.inf and self.grace_s >= 0 and self.count_max >= 0):
            raise UsageError(
                "GarbageLimits needs an interval_s above 0, a grace_s and a count_max of 0 or more"
            )


class Orphan(msgspec.Struct, frozen=True):
    """A secondary whose owner doesn't exist.

    Attributes:
        kind: the secondary's kind.
        key: the secondary's key.
        revision: the secondary's revision when it was found.
        owner: the owner that the secondary names; empty if it names none.
        reason: why the secondary is an orphan.
        proven: whether a delete marker proves that the owner was deleted.
        suspected_s: seconds since the secondary was first found to be an orphan.
        due: whether the grace period is over.
        uid: the secondary's uid; empty if its store assigns none.
        held: why the secondary isn't deleted; empty if it may be deleted.
    """

    kind: str
    key: str
    revision: int
    owner: str
    reason: str
    proven: bool
    suspected_s: float
    due: bool
    uid: str = ""
    held: str = ""

    @property
    def name(self) -> str:
        """The kind and the key, for people."""
        return f"{self.kind}/{self.key}"


class GarbagePlan(msgspec.Struct, frozen=True):
    """The orphans that a GC cycle would delete.

    Attributes:
        orphans: the orphans that were checked.
        refused: why the cycle deletes nothing; empty if it may delete.
        stores: for each kind, the incarnation of the store that the revisions belong to.
        more: the number of further suspected orphans that were not checked.
    """

    orphans: tuple[Orphan, ...]
    refused: str = ""
    stores: dict[str, str] = {}
    more: int = 0


class Kept(msgspec.Struct, frozen=True):
    """An object of a plan that was not deleted, and the reason."""

    orphan: Orphan
    reason: str


class Removed(msgspec.Struct, frozen=True):
    """The objects of a plan that were deleted, and the objects that were kept."""

    orphans: tuple[Orphan, ...] = ()
    kept: tuple[Kept, ...] = ()


def orphan_reason(owner: str, deleted_at: int | None) -> str:
    """Return why objects of *owner* are orphans; *deleted_at* is the revision of its marker."""
    if deleted_at is None:
        return f"owner {owner} does not exist, and no delete marker proves its deletion"
    if planned_revision(deleted_at):
        return f"owner {owner} would be deleted"
    return f"owner {owner} was deleted at revision {deleted_at}"
