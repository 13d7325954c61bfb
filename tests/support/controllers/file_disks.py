"""A controller whose disks are files, and whose process kills itself at a chosen call.

The folder in `DISKS_FOLDER` is the external system: a file per disk, and a log of creations. The
file `kill` in the folder has a key and a number. Each external call and each write of the key has
a point before its effect and one after it; the process kills itself at the point of that number.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from natsctl import Controller, Kind, Primary, primary
from natsctl.core.informer import Informer
from natsctl.core.writes import Writes
from natsctl.managed import Managed, ManagedReconciler, Observation
from tests.support.controllers.disk_reconciler import DISKS, Disk
from tests.support.stores.crashing_store import MortalStore

FOLDER = Path(os.environ.get("DISKS_FOLDER", "."))


class Plan:
    """Kills this process at the point that the file `kill` names."""

    def __init__(self) -> None:
        key, point = (FOLDER / "kill").read_text().split()
        self._key = key
        self._point = int(point)
        self._passed = 0

    @contextmanager
    def call(self, key: str) -> Iterator[None]:
        self._pass(key)
        yield
        self._pass(key)

    def _pass(self, key: str) -> None:
        if key == self._key:
            if self._passed == self._point:
                os.kill(os.getpid(), signal.SIGKILL)
            self._passed += 1


class Files:
    """The `ExternalClient` of the folder; the name of a disk is the key of its object."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    async def observe(self, managed: Managed[Disk]) -> Observation:
        with self._plan.call(managed.key):
            file = FOLDER / "disks" / managed.external_name
            if not file.exists():
                return Observation()
            return Observation(
                exists=True, up_to_date=file.read_text() == str(managed.object.spec.size)
            )

    async def create(self, managed: Managed[Disk]) -> None:
        with self._plan.call(managed.key):
            with (FOLDER / "created").open("a") as log:
                log.write(f"{managed.key}\n")
            with (FOLDER / "disks" / managed.external_name).open("x") as file:
                file.write(str(managed.object.spec.size))

    async def update(self, managed: Managed[Disk]) -> None:
        with self._plan.call(managed.key):
            (FOLDER / "disks" / managed.external_name).write_text(str(managed.object.spec.size))

    async def delete(self, managed: Managed[Disk]) -> None:
        with self._plan.call(managed.key):
            (FOLDER / "disks" / managed.external_name).unlink(missing_ok=True)


class Disks(Controller):
    """Creates, updates and deletes files as the bucket requires."""

    disks = primary(DISKS)
    sync_timeout_s = 120.0

    async def start(self) -> None:
        plan = Plan()
        store: Any = MortalStore(self.disks.informer.store, plan.call)

        async def open_records(kind: Kind[Any]) -> Any:
            assert self.disks.open_store is not None
            records = await self.disks.open_store(kind)
            return MortalStore(records, lambda key: plan.call(key.rpartition(".")[2]))

        watched = Primary[Disk](Informer(store, DISKS), Writes(), open_records, self.disks.queue)

        async def connect(_managed: Managed[Disk]) -> Files:
            return Files(plan)

        self.reconciler = ManagedReconciler(
            watched,
            connecter=connect,
            external_name=lambda managed: managed.key,
            creation_grace_period_s=0.0,
        )

    async def sync_handler(self, key: str) -> float | None:
        return await self.reconciler.reconcile(key)
