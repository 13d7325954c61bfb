"""Opens a controller: its stores and slots, and the parts that sync its keys."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from natsctl.controller.controller import Controller
from natsctl.controller.garbage.collector import GarbageCollector
from natsctl.controller.garbage.evidence import MEMORY, Evidence
from natsctl.controller.slots.declare import Slot, only_primary, slots
from natsctl.controller.slots.kube_secondary import KubeSecondary
from natsctl.controller.slots.open_slots import Opening, OpenSlot
from natsctl.controller.slots.owned import Owned
from natsctl.controller.slots.owners import OwnerNames
from natsctl.controller.slots.reads import Reads
from natsctl.controller.slots.secondaries import Secondaries
from natsctl.controller.sync.enqueue import Enqueuer
from natsctl.controller.sync.events import SyncReports
from natsctl.controller.sync.gc_cycles import GarbageCycles
from natsctl.controller.sync.sync_run import SyncRuns
from natsctl.core.backends import Backends
from natsctl.core.coordination.installation import (
    Installation,
    InstallationAnnotation,
    installation,
)
from natsctl.core.coordination.term import current_leadership, shares_keys
from natsctl.core.explain import source_of
from natsctl.core.history import SyncHistory
from natsctl.core.informer import Informer
from natsctl.core.loop import KeyQueue
from natsctl.core.pausing.pausing import Pausing
from natsctl.core.readers import Primary
from natsctl.core.recording.recordings import current_recordings, listed
from natsctl.core.table import Invalid, Keeping
from natsctl.core.workqueue import Operation
from natsctl.core.writes import Barrier
from natsctl.errors import NewerVersionError, UsageError
from natsctl.model.manifests import KubeKind
from natsctl.model.recorder import Recorder
from natsctl.model.store import ManifestStores, Stores


class OpenController(msgspec.Struct, frozen=True):
    """The parts of a controller whose stores are open.

    `slots` has every slot by name, in the order of declaration.
    """

    installation: Installation
    primary: Primary[Any]
    secondaries: Secondaries
    reads: Reads
    slots: dict[str, OpenSlot]
    reports: SyncReports
    runs: SyncRuns
    enqueuer: Enqueuer
    garbage: GarbageCycles

    @property
    def informers(self) -> dict[str, Informer[Any]]:
        """The informers, by slot."""
        return {name: slot.reader.informer for name, slot in self.slots.items()}


class Opener(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Opens a controller.

    Raises `UsageError` if the controller has kinds in a cluster and *kube* is None.
    """

    controller: Controller
    keys: KeyQueue
    barrier: Barrier
    history: SyncHistory
    pausing: Pausing
    nats: Stores
    kube: ManifestStores | None
    names: OwnerNames

    def __post_init__(self) -> None:
        """Check that there is a cluster, if the controller needs one."""
        cls = type(self.controller)
        for slot in slots(cls):
            if isinstance(slot.kind, KubeKind) and self.kube is None:
                raise UsageError(
                    f"{cls.__name__}.{slot.name} is stored in Kubernetes, but there is no "
                    "cluster: pass kube=, see natsctl.connect_kube"
                )

    @asynccontextmanager
    async def recorders(self) -> AsyncIterator[list[Recorder]]:
        """Return the recorders of the controller's events; the end of the context flushes them."""
        writes_kube = any(slot.role is KubeSecondary for slot in slots(type(self.controller)))
        kube = [self.kube] if self.kube is not None and writes_kube else []
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(stores.recorder(self.controller.name))
                for stores in (self.nats, *kube)
            ]

    async def open(self, recorders: Sequence[Recorder]) -> OpenController:
        """Open every slot, and assign its reader to the attribute of the controller."""
        installed = await installation(self.nats)
        controller, keys, history = self.controller, self.keys, self.history
        slot = only_primary(type(controller))
        secondaries = Secondaries(slot.kind.name, self.names)
        history.recorders, history.recorder = recorders, current_recordings.get()
        self.barrier.notes = history.recorder is not None
        history.regarding = secondaries.references
        history.around = lambda key, steps: (*listed(steps), *secondaries.around(key))
        reports = SyncReports(history)
        primary = await self._open_primary(slot, reports)
        reads = Reads(
            self._backends,
            lambda key: keys.enqueue(key, Operation.SECONDARY),
            keys.queue.is_claimed,
        )
        runs = await self._runs(primary, secondaries, reads)
        enqueuer = Enqueuer(
            controller=controller,
            maps=self._maps_secondaries,
            keys=keys,
            primary=primary,
            secondaries=secondaries,
            reads=reads,
            runs=runs,
            reports=reports,
        )
        mark = InstallationAnnotation(self.names.installation, installed)
        opened = await self._open_slots(primary, secondaries, enqueuer, mark)
        vars(controller)["reads"] = reads
        return OpenController(
            installation=installed,
            primary=primary,
            secondaries=secondaries,
            reads=reads,
            slots=opened,
            reports=reports,
            runs=runs,
            enqueuer=enqueuer,
            garbage=self._garbage(primary, secondaries, runs, reports),
        )

    @property
    def _backends(self) -> Backends:
        return Backends(nats=self.nats, kube=self.kube)

    async def _runs(
        self, primary: Primary[Any], secondaries: Secondaries, reads: Reads
    ) -> SyncRuns:
        controller, keys = self.controller, self.keys
        evidence = Evidence(primary.informer, await self._backends.open(MEMORY), controller.name)
        return SyncRuns(
            controller.sync_handler,
            primary,
            secondaries,
            self.barrier,
            self.history,
            reads=reads,
            evidence=evidence,
            policy=controller.deletion_policy,
            paused=keys.paused_keys,
            queue=keys.queue,
            timeout_s=controller.sync_timeout_s,
        )

    def _garbage(
        self, primary: Primary[Any], secondaries: Secondaries, runs: SyncRuns, reports: SyncReports
    ) -> GarbageCycles:
        controller = self.controller
        paused = partial(self.pausing.advice, source=source_of(primary.informer.cache.kind))
        collector = GarbageCollector(
            primary.informer, tuple(secondaries), runs.evidence, controller.garbage, paused
        )
        return GarbageCycles(collector, runs, reports, self.keys, controller.deletion_policy)

    async def _open_primary(self, slot: Slot[Primary[Any]], reports: SyncReports) -> Primary[Any]:
        leadership = current_leadership.get()

        def invalid(found: Invalid) -> None:
            reports.invalid(found)
            if leadership is not None and isinstance(found.error, NewerVersionError):
                leadership.unreadable(found.stored.key)

        informer: Informer[Any] = Informer(
            await self._backends.open(slot.kind),
            slot.kind,
            indexes=slot.indexes,
            on_invalid=invalid,
            on_listed=self.keys.queue.hasten_retries,
            keeping=Keeping(self.keys.keeps, quiet=True) if shares_keys() else None,
            notes_deleted=shares_keys(),
        )
        return Primary(informer, self.barrier, self._backends.open, self.keys.queue)

    @property
    def _maps_secondaries(self) -> bool:
        """True if the controller maps changes of secondaries to keys, for which it needs values."""
        return type(self.controller).handle_secondary is not Controller.handle_secondary

    async def _open_slots(
        self,
        primary: Primary[Any],
        secondaries: Secondaries,
        enqueuer: Enqueuer,
        mark: InstallationAnnotation,
    ) -> dict[str, OpenSlot]:
        """Open the other slots, and return all by name in the order of their declaration."""
        opening = Opening(
            backends=self._backends,
            barrier=self.barrier,
            primary=primary,
            names=self.names,
            mark=mark,
            manager=f"natsctl/{self.controller.name}",
            listeners=enqueuer.listeners,
            keeps=self.keys.keeps if shares_keys() and not self._maps_secondaries else None,
        )
        opened = {}
        for slot in slots(type(self.controller)):
            if slot.role is Primary:
                open_slot = OpenSlot(
                    primary,
                    partial(self.keys.primary_changed, primary),
                    partial(self.keys.primaries_changed, primary),
                )
            else:
                open_slot = await opening.open(slot)
            if isinstance(open_slot.reader, Owned):
                secondaries.add(open_slot.reader)
            opened[slot.name] = open_slot
            vars(self.controller)[slot.name] = open_slot.reader
        return opened
