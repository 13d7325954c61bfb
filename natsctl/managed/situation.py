"""What to do about a managed object: one table, from its situation to an action."""

from enum import Enum

import msgspec


class Seen(Enum):
    """What was observed of the external resource."""

    NOTHING_YET = "nothing yet"
    ABSENT = "absent"
    UNSAID = "unsaid"  # it has what its object does not say yet, and is to say from now on
    DIFFERENT = "different"
    CURRENT = "current"


class Action(Enum):
    """What to do."""

    PAUSE = "pause"
    REJECT = "reject"  # its policies make no sense
    RELEASE = "release"  # the object may go
    TELL = "tell"  # a person has to say what came of a creation
    OBSERVE = "observe"
    WAIT = "wait"  # what was just created may not be visible yet
    DELAY = "delay"  # other finalizers hold the object, so its external resource stays
    DELETE = "delete"
    CREATE = "create"
    MISS = "miss"  # it should be there and may not be created
    SETTLE = "settle"  # a creation of which nobody knew the result has succeeded
    LATE_INITIALIZE = "late-initialize"
    UPDATE = "update"
    REST = "rest"


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a decision depends on.

    Args:
        paused: the object asks to be left alone.
        understood: its policies can be read.
        going: it is deleted, as soon as it is released.
        held: our finalizer is on it, or a record has its link.
        shared: finalizers of others are on it.
        may_create: its policies allow that; so `may_update` and `may_delete`.
        unknown: a creation was begun, and its result is not stored.
        named: the external name is known before a creation, so observing finds what it made.
        recent: a creation has, or may have, succeeded within the grace period, and what it made
            was not observed yet.
        seen: what was observed.
    """

    paused: bool = False
    understood: bool = True
    going: bool = False
    held: bool = True
    shared: bool = False
    may_create: bool = True
    may_update: bool = True
    may_delete: bool = True
    unknown: bool = False
    named: bool = False
    recent: bool = False
    seen: Seen = Seen.NOTHING_YET


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An action, and what it is for; None stands for anything."""

    action: Action
    paused: bool | None = None
    understood: bool | None = None
    going: bool | None = None
    held: bool | None = None
    shared: bool | None = None
    may_create: bool | None = None
    may_update: bool | None = None
    may_delete: bool | None = None
    unknown: bool | None = None
    named: bool | None = None
    recent: bool | None = None
    seen: Seen | None = None

    def fits(self, situation: Situation) -> bool:
        """Say whether the row is for this situation."""
        return all(
            getattr(self, name) in {None, getattr(situation, name)}
            for name in situation.__struct_fields__
        )


TABLE = (
    Row(action=Action.PAUSE, paused=True),
    Row(action=Action.REJECT, understood=False),
    Row(action=Action.RELEASE, going=True, held=False),
    Row(action=Action.RELEASE, going=True, may_delete=False),
    Row(action=Action.TELL, unknown=True, named=False),
    Row(action=Action.OBSERVE, seen=Seen.NOTHING_YET),
    Row(action=Action.WAIT, seen=Seen.ABSENT, recent=True),
    Row(action=Action.RELEASE, seen=Seen.ABSENT, going=True),
    Row(action=Action.DELAY, going=True, shared=True),
    Row(action=Action.DELETE, going=True),
    Row(action=Action.CREATE, seen=Seen.ABSENT, may_create=True),
    Row(action=Action.MISS, seen=Seen.ABSENT),
    Row(action=Action.SETTLE, unknown=True),
    Row(action=Action.LATE_INITIALIZE, seen=Seen.UNSAID),
    Row(action=Action.UPDATE, seen=Seen.DIFFERENT, may_update=True),
    Row(action=Action.REST),
)
"""The first row that fits decides.

*Guarantees.* A paused object is never touched. The external resource of an `orphan` is never
deleted, and none is deleted while finalizers of others hold its object. Nothing is created while
the result of an earlier creation is unknown, unless the name of the resource is known beforehand.
The object of a resource that exists, and may be deleted, is not released."""


def decide(situation: Situation) -> Action:
    """Return what to do."""
    return next(row.action for row in TABLE if row.fits(situation))
