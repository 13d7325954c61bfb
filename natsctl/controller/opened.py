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
from natsctl.core.cache.informer import Informer
from natsctl.core.cache.keeping import Keeping
from natsctl.core.coordination.installation import (
    Installation,
    InstallationAnnotation,
    installation,
)
from natsctl.core.coordination.term import shares_keys
from natsctl.core.objects.backends import Backends
from natsctl.core.objects.primary import Primary
from natsctl.core.objects.read_your_writes import Barrier
from natsctl.core.pausing.pausing import Pausing
from natsctl.core.recording.noted_stores import noted
from natsctl.core.recording.recordings import SyncRecorder, current_recordings, listed
from natsctl.core.sync.history import SyncHistory
from natsctl.core.sync.keys import KeyQueue, Operation
from natsctl.errors import UsageError
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


class Opener:
    """Opens a controller.

    Args:
        controller: the controller; its slots get their readers.
        keys: enqueues its keys.
        barrier: remembers its writes until the caches show them.
        history: keeps the history of its syncs.
        pausing: its pauses.
        nats: the stores of kinds that are declared with `kv`.
        kube: the stores of kinds that are declared with `kube`.
        names: the labels that link secondaries to primaries.

    Raises `UsageError` if the controller has kinds in a cluster and *kube* is None.
    """

    def __init__(
        self,
        controller: Controller,
        keys: KeyQueue,
        barrier: Barrier,
        history: SyncHistory,
        pausing: Pausing,
        *,
        nats: Stores,
        kube: ManifestStores | None,
        names: OwnerNames,
    ) -> None:
        cls = type(controller)
        for slot in slots(cls):
            if isinstance(slot.kind, KubeKind) and kube is None:
                raise UsageError(
                    f"{cls.__name__}.{slot.name} is stored in Kubernetes, but there is no "
                    "cluster: pass kube=, see natsctl.connect_kube"
                )
        self._controller = controller
        self._keys = keys
        self._barrier = barrier
        self._history = history
        self._pausing = pausing
        self._nats = nats
        self._kube = kube
        self._backends = Backends(nats=nats, kube=kube)
        self._names = names

    @asynccontextmanager
    async def recorders(self) -> AsyncIterator[list[Recorder]]:
        """Return the recorders of the controller's events; the end of the context flushes them."""
        writes_kube = any(slot.role is KubeSecondary for slot in slots(type(self._controller)))
        kube = [self._kube] if self._kube is not None and writes_kube else []
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(stores.recorder(self._controller.name))
                for stores in (self._nats, *kube)
            ]

    async def open(self, recorders: Sequence[Recorder]) -> OpenController:
        """Open every slot, and assign its reader to the attribute of the controller.

        If recordings are kept in this context, every sync notes its reads and calls.
        """
        recorder = current_recordings.get()
        if recorder is not None:
            self._barrier.notes = True
            self._backends = noted(self._backends)
        installed = await installation(self._nats)
        return await self._open(recorders, installed, recorder)

    async def _open(
        self,
        recorders: Sequence[Recorder],
        installed: Installation,
        recorder: SyncRecorder | None,
    ) -> OpenController:
        controller, keys = self._controller, self._keys
        slot = only_primary(type(controller))
        secondaries = Secondaries(slot.kind.name, self._names)
        self._history.recorders, self._history.recorder = recorders, recorder
        self._history.regarding = secondaries.references
        self._history.around = lambda key, notes: (*listed(notes), *secondaries.around(key))
        reports = SyncReports(self._history)
        primary = await self._open_primary(slot, reports)
        reads = Reads(self._backends, lambda key: keys.enqueue(key, Operation.SECONDARY))
        runs = await self._runs(primary, secondaries, reads)
        enqueuer = Enqueuer(
            controller,
            keys,
            primary,
            secondaries,
            maps=self._maps_secondaries,
            reads=reads,
            runs=runs,
            reports=reports,
        )
        mark = InstallationAnnotation(self._names.installation, installed)
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

    async def _runs(
        self, primary: Primary[Any], secondaries: Secondaries, reads: Reads
    ) -> SyncRuns:
        controller, keys = self._controller, self._keys
        evidence = Evidence(primary.informer, await self._backends.open(MEMORY), controller.name)
        return SyncRuns(
            controller.sync_handler,
            primary,
            secondaries,
            self._barrier,
            self._history,
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
        controller, paused = self._controller, self._pausing.advice
        collector = GarbageCollector(
            primary.informer, tuple(secondaries), runs.evidence, controller.garbage, paused=paused
        )
        policy = controller.deletion_policy
        return GarbageCycles(collector, runs, reports, self._keys, policy=policy)

    async def _open_primary(self, slot: Slot[Primary[Any]], reports: SyncReports) -> Primary[Any]:
        informer: Informer[Any] = Informer(
            await self._backends.open(slot.kind),
            slot.kind,
            indexes=slot.indexes,
            on_invalid=reports.invalid,
            on_listed=self._keys.queue.hasten_retries,
            keeping=Keeping(self._keys.keeps, quiet=True) if shares_keys() else None,
            notes_deleted=shares_keys(),
        )
        return Primary(informer, self._barrier, self._backends.open)

    @property
    def _maps_secondaries(self) -> bool:
        """True if the controller maps changes of secondaries to keys, for which it needs values."""
        return type(self._controller).handle_secondary is not Controller.handle_secondary

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
            barrier=self._barrier,
            primary=primary,
            names=self._names,
            mark=mark,
            manager=f"natsctl/{self._controller.name}",
            listeners=enqueuer.listeners,
            keeps=self._keys.keeps if shares_keys() and not self._maps_secondaries else None,
        )
        opened = {}
        for slot in slots(type(self._controller)):
            if slot.role is Primary:
                open_slot = OpenSlot(primary, partial(self._keys.primary_changed, primary))
            else:
                open_slot = await opening.open(slot)
            if isinstance(open_slot.reader, Owned):
                secondaries.add(open_slot.reader)
            opened[slot.name] = open_slot
            vars(self._controller)[slot.name] = open_slot.reader
        return opened
