"""Plans of garbage collection: the limits, the orphans, and what became of them."""

import math

import msgspec

from natsctl.errors import UsageError


class GarbageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When garbage is collected, and when that needs a person.

    A sweep runs every `interval_s`. An orphan is collected once it was suspected for `grace_s`. A
    sweep that would remove more than `count_max` objects, or more than the share `share_max` of
    all that is owned where that is more than `share_from` objects, removes none.
    """

    interval_s: float = 30.0
    grace_s: float = 60.0
    count_max: int = 1000
    share_max: float = 0.3
    share_from: int = 10

    def __post_init__(self) -> None:
        """Raise `UsageError` for a number that is out of range."""
        if not (0 < self.interval_s < math.inf and self.grace_s >= 0 and self.count_max >= 0):
            raise UsageError(
                "GarbageLimits needs an interval_s above 0, a grace_s and a count_max of 0 or more"
            )


class Orphan(msgspec.Struct, frozen=True):
    """A secondary whose owner does not exist.

    `proven` says that the owner's delete marker was found, `due` that the grace period is over;
    `uid` is empty where the store gives objects none. `held` is why the object stays although its
    owner does not exist; empty if it does not. `former` is the living primary that it was made for,
    if the owner that it names was edited by hand.
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
    former: str = ""


class GarbagePlan(msgspec.Struct, frozen=True):
    """What a sweep would remove; `refused` says why it removes nothing, and is empty else.

    `stores` says of each kind in which incarnation of its store the revisions were seen; `more` is
    how many further objects are suspected that nobody looked at.
    """

    orphans: tuple[Orphan, ...]
    refused: str = ""
    stores: dict[str, str] = {}
    more: int = 0


class Kept(msgspec.Struct, frozen=True):
    """An object of a plan that was not removed, and the reason."""

    orphan: Orphan
    reason: str


class Removed(msgspec.Struct, frozen=True):
    """The objects of a plan that were removed, and those that were kept."""

    orphans: tuple[Orphan, ...] = ()
    kept: tuple[Kept, ...] = ()
