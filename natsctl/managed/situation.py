"""Decides what to do about a managed object, with one table from situations to actions."""

from enum import Enum

import msgspec


class Observed(Enum):
    """The observed state of the external resource."""

    NOT_YET = "not yet"
    ABSENT = "absent"
    LATE_INITIALIZED = "late-initialized"  # it has values for unset fields of the spec
    DIFFERENT = "different"
    CURRENT = "current"


class ReconcileAction(Enum):
    """A step of a reconciliation."""

    PAUSE = "pause"
    REJECT = "reject"  # the policies are invalid
    RELEASE = "release"  # remove the finalizer
    ASK = "ask"  # a person has to resolve a creation with an unknown result
    OBSERVE = "observe"
    WAIT = "wait"  # a new external resource may not be visible yet
    DELAY = "delay"  # other finalizers hold the object, so its external resource stays
    KEEP = "keep"  # remove the finalizer; the resource isn't natsctl's
    DELETE = "delete"
    CREATE = "create"
    ADOPT = "adopt"  # take over a resource that natsctl didn't create
    DISOWN = "disown"  # nobody permitted that
    REPORT_ABSENT = "report absent"  # the policies forbid the creation
    SETTLE = "settle"  # a creation with an unknown result has succeeded
    LATE_INITIALIZE = "late-initialize"
    UPDATE = "update"
    REST = "rest"


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """All facts that a decision depends on.

    Args:
        paused: the object is paused.
        valid: its policies are valid.
        deleting: the object is deleted, or will be when its finalizers are removed.
        held: the object has the reconciler's finalizer, or a record has its link.
        shared: the object has other finalizers.
        may_create: the policies permit a creation; likewise `may_update` and `may_delete`.
        unknown: a creation has begun, and its result is not stored.
        named: the external name is known before a creation, so an observation finds the resource.
        recent: a creation has, or may have, succeeded within the grace period, and a missing
            resource may be one that is not visible yet.
        owned: natsctl created the external resource, may have created it, or has adopted it, or
            it's only observed.
        may_adopt: somebody said that a resource that natsctl didn't create is taken over.
        observed: the state of the external resource.
    """

    paused: bool = False
    valid: bool = True
    deleting: bool = False
    held: bool = True
    shared: bool = False
    may_create: bool = True
    may_update: bool = True
    may_delete: bool = True
    unknown: bool = False
    named: bool = False
    recent: bool = False
    owned: bool = True
    may_adopt: bool = False
    observed: Observed = Observed.NOT_YET


class ActionRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An action and the situations that it is for; None matches any value."""

    action: ReconcileAction
    paused: bool | None = None
    valid: bool | None = None
    deleting: bool | None = None
    held: bool | None = None
    shared: bool | None = None
    may_create: bool | None = None
    may_update: bool | None = None
    may_delete: bool | None = None
    unknown: bool | None = None
    named: bool | None = None
    recent: bool | None = None
    owned: bool | None = None
    may_adopt: bool | None = None
    observed: Observed | None = None

    def matches(self, situation: Situation) -> bool:
        """Return whether the row matches *situation*."""
        for name in situation.__struct_fields__:
            wanted = getattr(self, name)
            if wanted is not None and wanted != getattr(situation, name):
                return False
        return True


TABLE = (
    ActionRule(action=ReconcileAction.PAUSE, paused=True),
    ActionRule(action=ReconcileAction.REJECT, valid=False),
    ActionRule(action=ReconcileAction.RELEASE, deleting=True, held=False),
    ActionRule(action=ReconcileAction.RELEASE, deleting=True, may_delete=False),
    ActionRule(action=ReconcileAction.ASK, unknown=True, named=False),
    ActionRule(action=ReconcileAction.OBSERVE, observed=Observed.NOT_YET),
    ActionRule(action=ReconcileAction.WAIT, observed=Observed.ABSENT, recent=True),
    ActionRule(action=ReconcileAction.RELEASE, observed=Observed.ABSENT, deleting=True),
    ActionRule(action=ReconcileAction.KEEP, deleting=True, owned=False),
    ActionRule(action=ReconcileAction.DELAY, deleting=True, shared=True),
    ActionRule(action=ReconcileAction.DELETE, deleting=True),
    ActionRule(action=ReconcileAction.CREATE, observed=Observed.ABSENT, may_create=True),
    ActionRule(action=ReconcileAction.REPORT_ABSENT, observed=Observed.ABSENT),
    ActionRule(action=ReconcileAction.ADOPT, owned=False, may_adopt=True),
    ActionRule(action=ReconcileAction.DISOWN, owned=False),
    ActionRule(action=ReconcileAction.SETTLE, unknown=True),
    ActionRule(action=ReconcileAction.LATE_INITIALIZE, observed=Observed.LATE_INITIALIZED),
    ActionRule(action=ReconcileAction.UPDATE, observed=Observed.DIFFERENT, may_update=True),
    ActionRule(action=ReconcileAction.REST),
)
"""The first row that matches decides.

*Guarantees.* The reconciler never touches a paused object. It never deletes the external resource
if the deletion policy is `orphan`, or while other finalizers hold the object. It creates nothing
while the result of an earlier creation is unknown, unless the resource's name is known beforehand.
It does not release an object whose resource exists and may be deleted. It never changes or deletes
a resource that natsctl didn't create, unless somebody said that it's adopted."""


def decide(situation: Situation) -> ReconcileAction:
    """Return the action for *situation*."""
    return next(row.action for row in TABLE if row.matches(situation))
