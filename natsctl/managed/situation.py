"""What to do about a managed object: one table from situations to actions, and its policies."""

from typing import Any, Literal, TypeAlias

from natsctl.errors import InvalidObjectError
from natsctl.managed.links import AnnotationNames
from natsctl.managed.objects import Managed
from natsctl.telemetry.hiding import quoted

Observed: TypeAlias = Literal["not yet", "absent", "late-initialized", "different", "current"]
"""The observed state of the external resource: it may have values for unset fields of the spec."""


Facts: TypeAlias = dict[str, bool | str]
"""All facts that a decision depends on.

- paused: the object is paused.
- valid: its policies are valid.
- deleting: the object is deleted, or will be when its finalizers are removed.
- held: the object has the reconciler's finalizer, or a record has its link.
- shared: the object has other finalizers.
- may_create: the policies permit a creation; likewise `may_update` and `may_delete`.
- unknown: a creation has begun, and its result is not stored.
- named: the external name is known before a creation, so an observation finds the resource.
- recent: a creation has, or may have, succeeded within the grace period, and a missing
  resource may be one that is not visible yet.
- owned: natsctl created the external resource, may have created it, or has adopted it, or
  it's only observed.
- may_adopt: somebody said that a resource that natsctl didn't create is taken over.
- observed: the state of the external resource.
"""

TABLE: tuple[tuple[str, Facts], ...] = (
    ("pause", {"paused": True}),
    ("reject", {"valid": False}),
    ("release", {"deleting": True, "held": False}),
    ("release", {"deleting": True, "may_delete": False}),
    ("ask", {"unknown": True, "named": False}),  # a person has to find out
    ("observe", {"observed": "not yet"}),
    ("wait", {"observed": "absent", "recent": True}),
    ("release", {"observed": "absent", "deleting": True}),
    ("keep", {"deleting": True, "owned": False}),
    ("delay", {"deleting": True, "shared": True}),
    ("delete", {"deleting": True}),
    ("create", {"observed": "absent", "may_create": True}),
    ("report_absent", {"observed": "absent"}),
    ("adopt", {"owned": False, "may_adopt": True}),
    ("disown", {"owned": False}),
    ("settle", {"unknown": True}),
    ("late_initialize", {"observed": "late-initialized"}),
    ("update", {"observed": "different", "may_update": True}),
    ("rest", {}),
)
"""The first row that matches decides: its step is a method of `ManagedReconciler`.

*Guarantees.* The reconciler never touches a paused object. It never deletes the external resource
if the deletion policy is `orphan`, or while other finalizers hold the object. It creates nothing
while the result of an earlier creation is unknown, unless the resource's name is known beforehand.
It does not release an object whose resource exists and may be deleted. It never changes or deletes
a resource that natsctl didn't create, unless somebody said that it's adopted."""


def decide(facts: Facts) -> str:
    """Return the step that follows from the facts."""
    return next(step for step, row in TABLE if row.items() <= facts.items())


# ---- what the policies of an object permit

ManagementPolicy: TypeAlias = Literal[
    "default", "observe-create-update", "observe-delete", "observe"
]
"""The permitted operations; `default` permits all."""

DeletionPolicy: TypeAlias = Literal["delete", "orphan"]
"""The fate of the external resource of a deleted object."""


_ALL = frozenset({"create", "update", "delete"})
_MANAGEMENT = {
    "default": _ALL,
    "observe-create-update": _ALL - {"delete"},
    "observe-delete": frozenset({"delete"}),
    "observe": frozenset[str](),
}
_DELETION = {"delete": frozenset[str](), "orphan": frozenset({"delete"})}


def permissions(
    managed: Managed[Any],
    names: AnnotationNames,
    management: ManagementPolicy,
    deletion: DeletionPolicy,
) -> frozenset[str]:
    """Return which of `create`, `update` and `delete` are permitted.

    The policies are in annotations, in the spec, or else these of the controller. The fields of a
    spec are `managementPolicy` and `deletionPolicy`, in camel or snake case. Raises
    `InvalidObjectError` for an unknown policy, which might permit less.
    """
    set_by, spec = managed.policies, managed.spec

    def policy(annotation: str, camel: str, snake: str, default: str) -> str:
        text = set_by.get(annotation) or spec.get(camel) or spec.get(snake) or default
        return str(text).lower()

    manage = policy(names.management_policy, "managementPolicy", "management_policy", management)
    delete = policy(names.deletion_policy, "deletionPolicy", "deletion_policy", deletion)
    for word, said, known in (
        ("management", manage, _MANAGEMENT),
        ("deletion", delete, _DELETION),
    ):
        if said not in known:
            policies = ", ".join(known)
            raise InvalidObjectError(f"there is no {word} policy {quoted(said)}: {policies}")
    adopt = set_by.get(names.adopt, "").lower()
    if adopt not in {"", "true", "false"}:
        raise InvalidObjectError(f'{names.adopt} is {quoted(adopt)}, and must be "true" or "false"')
    return _MANAGEMENT[manage] - _DELETION[delete]
