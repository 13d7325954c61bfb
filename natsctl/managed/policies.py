"""What may be done to an external resource, as its object and its controller say."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from natsctl.errors import InvalidObjectError
from natsctl.managed.names import AnnotationNames
from natsctl.telemetry.hiding import quoted

ManagementPolicy: TypeAlias = Literal[
    "default", "observe-create-update", "observe-delete", "observe"
]
"""What may be done: `default` is everything."""

DeletionPolicy: TypeAlias = Literal["delete", "orphan"]
"""What becomes of the external resource when its object is deleted."""


class Permissions(msgspec.Struct, frozen=True):
    """What may be done to the external resource; observing it always may."""

    create: bool = True
    update: bool = True
    delete: bool = True


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
    """Return what may be done: what annotations say, else the spec, else the controller.

    In a spec the policies are `managementPolicy` and `deletionPolicy`; how they are capitalised
    is no matter. Raises `InvalidObjectError` for a policy that nobody knows: it might mean less.
    """
    manage = _said(annotations, names.management_policy, spec, "managementPolicy") or management
    delete = _said(annotations, names.deletion_policy, spec, "deletionPolicy") or deletion
    if manage not in _MANAGEMENT:
        raise InvalidObjectError(
            f"there is no management policy {quoted(manage)}: {', '.join(_MANAGEMENT)}"
        )
    if delete not in _DELETION:
        raise InvalidObjectError(
            f"there is no deletion policy {quoted(delete)}: {', '.join(_DELETION)}"
        )
    may = _MANAGEMENT[manage]
    return msgspec.structs.replace(may, delete=may.delete and _DELETION[delete])


def _said(annotations: Mapping[str, str], key: str, spec: Mapping[str, object], field: str) -> str:
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in field)
    found = annotations.get(key) or spec.get(field) or spec.get(snake) or ""
    return str(found).lower()
