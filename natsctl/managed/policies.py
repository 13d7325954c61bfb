"""The operations that the policies of an object permit on its external resource."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from natsctl.errors import InvalidObjectError
from natsctl.managed.names import AnnotationNames
from natsctl.telemetry.hiding import quoted

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
        """True if anything but observation is permitted."""
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
