"""Which buckets controllers use, and what they do there."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from natsctl.core.declare import slots
from natsctl.core.garbage import MEMORY
from natsctl.core.slots import Tertiary
from natsctl.daemon.operator import Guest
from natsctl.managed import ManagedController
from natsctl.model.kinds import Kind, KvKind
from natsctl.runtime import Controller
from natsctl.watchers import InformerController


class Used(msgspec.Struct, frozen=True):
    """A kind in a bucket, whether it is written, and by which controller."""

    kind: KvKind[Any]
    written: bool
    controller: str

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self.kind.bucket


def used_by(controllers: Iterable[Controller | Guest]) -> tuple[Used, ...]:
    """Return what the controllers use of NATS, in the order in which they say so."""
    return tuple(
        Used(kind, written, controller.name)
        for controller in controllers
        for kind, written in _uses(controller)
        if isinstance(kind, KvKind)
    )


def _uses(controller: Controller | Guest) -> Iterator[tuple[Kind[Any], bool]]:
    if isinstance(controller, Controller):
        for slot in slots(type(controller)):
            yield slot.kind, slot.role is not Tertiary
        yield MEMORY, True
    for kind in controller.kinds:
        yield kind, False
    if isinstance(controller, InformerController | ManagedController):
        for kind in controller.held_kinds:
            yield kind, True
