"""What to do about a managed object: one table from situations to actions, and its policies."""

from collections.abc import Mapping
from enum import Enum
from typing import Literal, TypeAlias

import msgspec

from natsctl.errors import InvalidObjectError
from natsctl.managed.links import AnnotationNames
from natsctl.telemetry.hiding import quoted


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


TABLE: tuple[tuple[ReconcileAction, dict[str, bool | Observed]], ...] = (
    (ReconcileAction.PAUSE, {"paused": True}),
    (ReconcileAction.REJECT, {"valid": False}),
    (ReconcileAction.RELEASE, {"deleting": True, "held": False}),
    (ReconcileAction.RELEASE, {"deleting": True, "may_delete": False}),
    (ReconcileAction.ASK, {"unknown": True, "named": False}),
    (ReconcileAction.OBSERVE, {"observed": Observed.NOT_YET}),
    (ReconcileAction.WAIT, {"observed": Observed.ABSENT, "recent": True}),
    (ReconcileAction.RELEASE, {"observed": Observed.ABSENT, "deleting": True}),
    (ReconcileAction.KEEP, {"deleting": True, "owned": False}),
    (ReconcileAction.DELAY, {"deleting": True, "shared": True}),
    (ReconcileAction.DELETE, {"deleting": True}),
    (ReconcileAction.CREATE, {"observed": Observed.ABSENT, "may_create": True}),
    (ReconcileAction.REPORT_ABSENT, {"observed": Observed.ABSENT}),
    (ReconcileAction.ADOPT, {"owned": False, "may_adopt": True}),
    (ReconcileAction.DISOWN, {"owned": False}),
    (ReconcileAction.SETTLE, {"unknown": True}),
    (ReconcileAction.LATE_INITIALIZE, {"observed": Observed.LATE_INITIALIZED}),
    (ReconcileAction.UPDATE, {"observed": Observed.DIFFERENT, "may_update": True}),
    (ReconcileAction.REST, {}),
)
"""The first row that matches decides.

*Guarantees.* The reconciler never touches a paused object. It never deletes the external resource
if the deletion policy is `orphan`, or while other finalizers hold the object. It creates nothing
while the result of an earlier creation is unknown, unless the resource's name is known beforehand.
It does not release an object whose resource exists and may be deleted. It never changes or deletes
a resource that natsctl didn't create, unless somebody said that it's adopted."""


def decide(situation: Situation) -> ReconcileAction:
    """Return the action for *situation*."""
    facts = msgspec.structs.asdict(situation)
    return next(action for action, row in TABLE if row.items() <= facts.items())


# ---- what the policies of an object permit

ManagementPolicy: TypeAlias = Literal[
    "default", "observe-create-update", "observe-delete", "observe"
]
"""The permitted operations; `default` permits all."""

DeletionPolicy: TypeAlias = Literal["delete", "orphan"]
"""The fate of the external resource of a deleted object."""


class Permissions(msgspec.Struct, frozen=True):
    """The permitted operations on an external resource; observation is always permitted."""

    create: bool = True
    update: bool = True
    delete: bool = True

    @property
    def changes(self) -> bool:
        return self.create or self.update or self.delete


_MANAGEMENT = {
    "default": Permissions(),
    "observe-create-update": Permissions(delete=False),
    "observe-delete": Permissions(create=False, update=False),
    "observe": Permissions(create=False, update=False, delete=False),
}
_DELETION = {"delete": True, "orphan": False}


def permissions(
    annotations: Mapping[str, str],
    spec: Mapping[str, object],
    names: AnnotationNames,
    *,
    management: ManagementPolicy = "default",
    deletion: DeletionPolicy = "delete",
) -> Permissions:
    """Return the permitted operations, from annotations, the spec, or the controller's options.

    The fields of a spec are `managementPolicy` and `deletionPolicy`, in camel or snake case. Raises
    `InvalidObjectError` for an unknown policy, which might permit less.
    """
    manage = _text(annotations, names.management_policy, spec, "managementPolicy") or management
    delete = _text(annotations, names.deletion_policy, spec, "deletionPolicy") or deletion
    if manage not in _MANAGEMENT:
        raise InvalidObjectError(
            f"there is no management policy {quoted(manage)}: {', '.join(_MANAGEMENT)}"
        )
    if delete not in _DELETION:
        raise InvalidObjectError(
            f"there is no deletion policy {quoted(delete)}: {', '.join(_DELETION)}"
        )
    adopt = annotations.get(names.adopt, "").lower()
    if adopt not in {"", "true", "false"}:
        raise InvalidObjectError(f'{names.adopt} is {quoted(adopt)}, and must be "true" or "false"')
    permitted = _MANAGEMENT[manage]
    return msgspec.structs.replace(permitted, delete=permitted.delete and _DELETION[delete])


def _text(annotations: Mapping[str, str], key: str, spec: Mapping[str, object], field: str) -> str:
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in field)
    text = annotations.get(key) or spec.get(field) or spec.get(snake) or ""
    return str(text).lower()
