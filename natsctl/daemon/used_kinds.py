"""Lists the kinds that a controller uses, each with the role of its objects."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from natsctl.controller.controller import Controller
from natsctl.controller.slots.declare import slots
from natsctl.core.readers import Primary, Tertiary
from natsctl.daemon.operator import Guest, Runnable
from natsctl.managed import ManagedController
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.schemas.kind_schema import Role
from natsctl.watchers import InformerController

_ROLES: dict[type, Role] = {Primary: "primary", Tertiary: "tertiary"}


class UsedKind(msgspec.Struct, frozen=True):
    """A kind that a controller uses.

    Attributes:
        kind: the kind.
        role: the role of its objects; a watcher's are tertiary.
        written: whether the controller writes the objects, at least their finalizers.
        slot: the name of the slot; empty for a kind that is not declared as a slot.
        recreated: whether objects are created again to change immutable fields.
    """

    kind: Kind[Any]
    role: Role
    written: bool
    slot: str = ""
    recreated: bool = False


def kinds_of(controller: Controller | Runnable) -> Iterator[UsedKind]:
    """Yield the kinds of the controller in the order of their declaration."""
    if isinstance(controller, Controller):
        for slot in slots(type(controller)):
            mirrored = isinstance(slot.kind, KvKind) and slot.kind.statuses is not None
            written = slot.role is not Tertiary and not mirrored
            role = _ROLES.get(slot.role, "secondary")
            recreated = slot.on_immutable == "recreate"
            yield UsedKind(slot.kind, role, written, slot.name, recreated)
    if isinstance(controller, Controller | Guest):
        role = "primary" if isinstance(controller, ManagedController) else "tertiary"
        held = _held_kinds(controller)
        for kind in controller.kinds:
            yield UsedKind(kind, role, kind in held)


def _held_kinds(controller: Controller | Guest) -> Sequence[Kind[Any]]:
    """Return the kinds whose objects the controller gives a finalizer."""
    if isinstance(controller, InformerController | ManagedController):
        return controller.held_kinds
    return ()
