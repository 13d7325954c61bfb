"""Lists the buckets that controllers use, and how they use them."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from natsctl.controller.controller import Controller
from natsctl.controller.garbage.evidence import MEMORY
from natsctl.core.coordination.installation import INSTALLATION
from natsctl.core.coordination.lease import (
    FIRST_RUNS,
    first_run_of,
    former_lease_of,
    records_of,
)
from natsctl.daemon.operator import Guest
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.daemon.used_kinds import kinds_of
from natsctl.managed import AnnotationNames, ManagedController
from natsctl.managed.links import RECORDS, record_key
from natsctl.model.kinds import KvKind


class Used(msgspec.Struct, frozen=True):
    """The use of a kind in a bucket by a controller.

    `written` is whether the controller writes objects of the kind, `watched` whether it watches
    them; otherwise it reads single keys.
    """

    kind: KvKind[Any]
    written: bool
    controller: str
    watched: bool = True

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self.kind.bucket


def used_by(controllers: Iterable[Controller | Guest]) -> tuple[Used, ...]:
    """Return the kinds in buckets that the controllers use, in the order of their declaration."""
    return tuple(used for controller in controllers for used in _used_by(controller))


def leases_of(
    controllers: Iterable[Controller | Guest], settings: ControllerSettings
) -> tuple[Used, ...]:
    """Return the uses of the bucket of leases: each controller has a record and heartbeats there.

    It also reads the lease that version 0.2 wrote.
    """
    return tuple(
        used for controller in controllers for used in _leases_of(controller.name, settings)
    )


def first_runs_of(
    controllers: Iterable[Controller | Guest], settings: ControllerSettings
) -> tuple[Used, ...]:
    """Return the uses of the bucket `natsctl` that several processes of a controller need."""
    if not settings.leader_elect and not settings.shard:
        return ()
    return tuple(
        Used(FIRST_RUNS.part(first_run_of(name)), written=True, controller=name, watched=False)
        for name in (controller.name for controller in controllers)
    )


def _leases_of(name: str, settings: ControllerSettings) -> Iterator[Used]:
    if settings.leader_elect or settings.shard:
        yield Used(records_of(name), written=True, controller=name)
        yield Used(former_lease_of(name), written=False, controller=name, watched=False)


def _used_by(controller: Controller | Guest) -> Iterator[Used]:
    for used in kinds_of(controller):
        if isinstance(used.kind, KvKind):
            yield Used(used.kind, used.written, controller.name)
    if isinstance(controller, Controller):
        memory = MEMORY.part(f"gc.{controller.name}")
        yield Used(memory, written=True, controller=controller.name, watched=False)
        yield Used(INSTALLATION, written=True, controller=controller.name, watched=False)
    if isinstance(controller, ManagedController) and isinstance(controller.kind, KvKind):
        links = RECORDS.part(record_key(controller.kind.bucket, ">", AnnotationNames()))
        yield Used(links, written=True, controller=controller.name, watched=False)
