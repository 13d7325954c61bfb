"""Simulates processes in storms: long schedules in which users and administrators act all the time.

Users write, delete and pause objects. Administrators stop processes, break watches, resync, pause
the controller, and delete leases. The calls and the watch of each store have their own faults.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import msgspec

from natsctl import (
    ConflictError,
    Controller,
    InformerController,
    Kind,
    KubeKind,
    ManagedController,
    ManagedReconciler,
    NotFoundError,
    Operator,
    OpinionatedWatcher,
    Primary,
    Snapshot,
    finalized,
    kube,
    secondary,
)
from natsctl.core.coordination.lease import is_first_run
from natsctl.core.coordination.shares import participations
from natsctl.core.coordination.term import SHARES
from natsctl.core.hosted import Hosted
from natsctl.core.pauses import PAUSES, controller_record
from natsctl.daemon.operator import Runnable
from natsctl.managed import Managed
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.objects import PAUSED
from natsctl.model.store import Deleted
from natsctl.testing import MemoryManifestStore, MemoryStore, MemoryStores, SimulatedExternal
from natsctl.testing.simulation.objects import Desired, put, remove, store_of
from natsctl.testing.simulation.world.choices import Choices
from natsctl.testing.simulation.world.external import ExternalSpecs
from natsctl.testing.simulation.world.faults import (
    CRASHES,
    JUMPS_S,
    Fault,
    Faults,
    FaultType,
    SimulatedCall,
)
from natsctl.testing.simulation.world.network import Network
from natsctl.testing.simulation.world.process import SimulatedProcess
from natsctl.testing.simulation.world.stores import SimulatedCluster, SimulatedStores
from tests.support.controllers.simulated_promises import (
    CLAIMS,
    SIGNS,
    TTL_S,
    BrokenPromiseError,
    Ledger,
    Things,
)
from tests.support.stores.sample_objects import THINGS, Thing, thing

PROCESSES = 3
NAMES = ("a", "b", "c", "d", "e", "f")
TEXTS = ("one", "two", "three")
STEPS_MIN, STEPS_MAX = 10, 40  # of the users, and of the administrators
USER_WAITS_S = (0.0, 0.0, 0.001, 0.02, 0.5, 3.0, 15.0)
ADMINISTRATOR_WAITS_S = (0.0, 0.5, 3.0, 12.0, 30.0)
ACTIONS = ("stop", "relist", "stop and relist", "resync", "pause", "resume", "lose a lease")
ALLOWED_SHARE = 0.5  # of the actions, and of the types of faults of a store, in one storm
FAULTS_MAX, CRASHES_MAX, JUMPS_MAX = 60, 6, 3
RATES = (0.0, 0.02, 0.1, 0.3)  # the probability of a fault, one for each store
SECONDS = (0.05, 0.5, 3.0, 12.0, 60.0)
CALM_S = 5_000.0  # virtual seconds after the storm in which every promise must hold
POSTERS = kube("v1", "ConfigMap")
WIDGETS = kube("example.com/v1", "Widget")
NAMESPACE = "default"
NAME = "things"  # of all controllers
HOLD = "storms/cloud"
CLOUD = "cloud"


class StormLedger(Ledger):
    """Also knows the objects in a cloud that handlers made."""

    def __init__(self) -> None:
        super().__init__()
        self.cloud: dict[str, str] = {}


class TwoStores(Things):
    """Hangs a sign in NATS and a poster in a cluster for each thing, named by its text."""

    name = NAME
    signs = secondary(SIGNS)
    posters = secondary(POSTERS)

    async def sync_handler(self, key: str) -> None:
        check_running(self, key, self.ledger)
        await super().sync_handler(key)
        stored = self.things.get(key)
        if stored is not None:
            await self._hang(f"{key}.{stored.spec.text}", stored.spec.text)

    async def _hang(self, name: str, text: str) -> None:
        """Hang a sign and a poster under this name, and take down those under former names."""
        await self.signs.apply(name, thing(text))
        for former in self.signs.owned().keys() - {name}:
            await self.signs.delete(former)
        metadata = {"name": name, "namespace": NAMESPACE}
        await self.posters.apply({"metadata": metadata, "data": {"text": text}})
        for former in self.posters.owned().keys() - {f"{NAMESPACE}/{name}"}:
            await self.posters.delete(former)


class Held(Things):
    """Keeps the text of each thing in a cloud, and holds the thing until it is removed there."""

    name = NAME
    ledger: StormLedger

    async def sync_handler(self, key: str) -> None:
        check_running(self, key, self.ledger)
        await finalized(self.things, key, HOLD, apply=self.provide, cleanup=self.clean_up)

    async def provide(self, key: str, stored: Thing) -> None:
        self.ledger.cloud[key] = stored.spec.text
        await super().sync_handler(key)
        self.ledger.cloud[key] = stored.spec.text

    async def clean_up(self, key: str, _stored: Thing) -> None:
        await self.ledger.handle(key, None)
        self.ledger.cloud.pop(key, None)


def check_running(controller: Controller, key: str, ledger: Ledger) -> None:
    """Note a sync of a key that is paused."""
    pause = controller.runtime.explain(key).paused
    if pause is not None and not pause.controller:
        ledger.broken.append(f"{key} is synced although it is paused")


def watchers(ledger: StormLedger, kind: Kind[Any]) -> Runnable:
    """Return watchers that keep the text of each object in a cloud."""

    async def shown(new: Snapshot[Any]) -> None:
        text = text_in(new.value)
        await ledger.handle(new.key, text)
        ledger.cloud[new.key] = text

    async def updated(_old: Snapshot[Any], new: Snapshot[Any]) -> None:
        await shown(new)

    async def deleted(last: Snapshot[Any]) -> None:
        await ledger.handle(last.key, None)
        ledger.cloud.pop(last.key, None)

    watcher = OpinionatedWatcher(
        kind, add_func=shown, update_func=updated, delete_func=deleted, sync_func=shown
    )
    informers = InformerController(name=NAME)
    informers.add_informer(kind)
    informers.add_watcher(watcher, kind)
    return informers


class ExclusiveSpecs(ExternalSpecs):
    """Keeps the specs of managed objects in a cloud, with one worker for each."""

    def __init__(self, cloud: SimulatedExternal, ledger: Ledger) -> None:
        super().__init__(cloud)
        self._ledger = ledger

    async def create(self, managed: Managed[Any]) -> None:
        await self._ledger.handle(managed.key, managed.spec["text"])
        await super().create(managed)

    async def update(self, managed: Managed[Any]) -> None:
        await self._ledger.handle(managed.key, managed.spec["text"])
        await super().update(managed)

    async def delete(self, managed: Managed[Any]) -> None:
        await self._ledger.handle(managed.key, None)
        await super().delete(managed)


class ExclusiveCloud(SimulatedExternal):
    def __init__(self, ledger: Ledger) -> None:
        super().__init__(CLOUD)
        self._ledger = ledger

    async def connect(self, managed: Managed[Any]) -> ExclusiveSpecs:
        return ExclusiveSpecs(self, self._ledger)


def managed(ledger: StormLedger, declared: Kind[Any]) -> Runnable:
    """Return a managed controller that keeps each object in a cloud.

    Users replace objects as a whole, which drops the link of an object of a cluster. Its resource
    is then found by its name.
    """

    class ManagedThings(ManagedController[Any]):
        name = NAME
        kind = declared
        adopt = isinstance(declared, KubeKind)

        def reconciler(self, managed: Primary[Any]) -> ManagedReconciler[Any]:
            return ManagedReconciler(
                managed,
                connecter=ExclusiveCloud(ledger),
                external_name=lambda stored: stored.key,
                recorder=self,
            )

    return ManagedThings()


class StormGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Three processes that run one controller.

    Attributes:
        controller: makes the controller of a process.
        mode: how the processes divide the work.
        kind: the kind of the primaries.
        cloud: whether each primary has an object in the cloud; otherwise, in two stores.
    """

    controller: Callable[[Any], Controller | Runnable]
    mode: Literal["elected", "shared", "apart"] = "elected"
    kind: Kind[Any] = THINGS
    cloud: bool = True


STORMS = {
    "two stores": StormGroup(controller=TwoStores, cloud=False),
    "finalizers": StormGroup(controller=Held),
    "watchers": StormGroup(controller=partial(watchers, kind=THINGS)),
    "watchers in a cluster": StormGroup(controller=partial(watchers, kind=WIDGETS), kind=WIDGETS),
    "managed": StormGroup(controller=partial(managed, declared=THINGS)),
    "managed in a cluster": StormGroup(controller=partial(managed, declared=WIDGETS), kind=WIDGETS),
}


COUNTS = {"elected": 1, "shared": SHARES}  # of shares


class StormProgram:
    """The program of one process of a group."""

    idle = False

    def __init__(
        self, group: StormGroup, ledger: StormLedger, nats: SimulatedStores, kube: SimulatedCluster
    ) -> None:
        clock = asyncio.get_running_loop().time
        participate = None
        if group.mode in COUNTS:
            participate = participations(
                nats.store,
                count=COUNTS[group.mode],
                ttl_s=TTL_S,
                clock=clock,
                first_run=partial(is_first_run, nats),
            )
        controllers = [group.controller(ledger)]
        self._operator = Operator(controllers, nats=nats, kube=kube, participate=participate)
        self.run = self._operator.run
        self.stop = self._operator.stop

    def resync(self) -> None:
        """Sync every key of this process again."""
        for runtime in self._operator.runtimes:
            if isinstance(runtime, Hosted) and runtime.synced.is_set() and not runtime.stopping:
                runtime.resync()


class Storm:
    """One long schedule, which follows from its seed."""

    def __init__(self, group: StormGroup, seed: int, faults: Faults | None = None) -> None:
        self.faults = storm_faults(Choices(seed)) if faults is None else faults
        self._group = group
        self._choices = choices = Choices(seed)
        self._stores, self._ledger = MemoryStores(), StormLedger()
        self._network = Network(choices, self.faults)
        self._processes = [
            SimulatedProcess(f"p{number}", self._program, self._network, self._stores, seed=seed)
            for number in range(PROCESSES)
        ]
        self._steps = STEPS_MIN + choices.below("steps", STEPS_MAX - STEPS_MIN)
        self._actions = [name for name in ACTIONS if choices.share(name) < ALLOWED_SHARE]

    async def run(self) -> None:
        """Run the schedule; raises `BrokenPromiseError`."""
        running = [asyncio.create_task(process.run()) for process in self._processes]
        try:
            async with asyncio.TaskGroup() as people:
                people.create_task(self._use())
                people.create_task(self._administer())
            self.faults.over = True
            await self._check()
        finally:
            self.faults.over = True
            for process in self._processes:
                process.stop()
            await asyncio.gather(*running)

    def _program(self, nats: SimulatedStores, kube: SimulatedCluster) -> StormProgram:
        return StormProgram(self._group, self._ledger, nats, kube)

    # ---- users

    async def _use(self) -> None:
        for number in range(self._steps):
            place = f"user/{number}"
            await self._take_user_step(place, self._choices.pick(f"{place}/name", NAMES))
            await asyncio.sleep(self._choices.pick(f"{place}/wait", USER_WAITS_S))

    async def _take_user_step(self, place: str, name: str) -> None:
        kind, share = self._group.kind, self._choices.share(place)
        key = f"{NAMESPACE}/{name}" if isinstance(kind, KubeKind) else name
        if share < 0.2:
            await remove(self._stores, kind, key)
        elif share < 0.3:
            await self._annotate(key, "true")
        elif share < 0.4:
            await self._annotate(key, None)
        elif share < 0.8 or self._group.cloud:
            await self._annotate(key, None)
            text = self._choices.pick(f"{place}/text", TEXTS)
            await put(self._stores, Desired(kind, key, document_of(kind, name, text)))
        else:
            await self._tamper(place)

    async def _annotate(self, key: str, text: str | None) -> None:
        """Pause an object, or resume it if the text is None."""
        store = self._primaries
        with suppress(ConflictError, NotFoundError):
            stored = await store.get(key)
            before = documents.parse(stored.value)
            after = documents.merge_patch(before, {"metadata": {"annotations": {PAUSED: text}}})
            if after != before:
                await store.update(key, documents.render(after), revision=stored.revision)

    async def _tamper(self, place: str) -> None:
        """Delete a sign or a poster, or change its text, as another client does."""
        kinds: tuple[Kind[Any], ...] = (SIGNS, POSTERS)
        kind = self._choices.pick(f"{place}/kind", kinds)
        store = store_of(self._stores, kind)
        hung = store.stored()
        if not hung:
            return
        chosen = hung[self._choices.below(f"{place}/object", len(hung))]
        change = {"text": "changed"}
        patch: Document = {"spec": change} if kind is SIGNS else {"data": change}
        changed = documents.merge_patch(documents.parse(chosen.value), patch)
        with suppress(ConflictError, NotFoundError):
            if self._choices.share(f"{place}/delete") < 0.5:
                await store.delete(chosen.key)
            else:
                value = documents.render(changed)
                await store.update(chosen.key, value, revision=chosen.revision)

    # ---- administrators

    async def _administer(self) -> None:
        for number in range(self._steps if self._actions else 0):
            place = f"administrator/{number}"
            process = self._choices.pick(f"{place}/process", self._processes)
            await self._act(self._choices.pick(place, self._actions), process, place)
            await asyncio.sleep(self._choices.pick(f"{place}/wait", ADMINISTRATOR_WAITS_S))

    async def _act(self, action: str, process: SimulatedProcess, place: str) -> None:
        if "relist" in action:
            kinds: tuple[Kind[Any], ...] = (self._group.kind, SIGNS, POSTERS, CLAIMS)
            store_of(self._stores, self._choices.pick(f"{place}/watch", kinds)).break_watches()
        if "stop" in action and process.program is not None:
            process.program.stop()  # when its syncs have ended, the process starts again
        match action:
            case "resync":
                self._resync()
            case "pause":
                await self._record(b"true")
            case "resume":
                await self._record(b"false")
            case "lose a lease":
                await self._lose_lease(place)
            case _:
                pass

    def _resync(self) -> None:
        for process in self._processes:
            if isinstance(process.program, StormProgram):
                process.program.resync()

    async def _record(self, text: bytes) -> None:
        """Pause or resume the whole controller."""
        records, key = self._stores.store(PAUSES), controller_record(NAME)
        try:
            revision = (await records.get(key)).revision
        except NotFoundError:
            await records.create(key, text)
        else:
            await records.update(key, text, revision=revision)

    async def _lose_lease(self, place: str) -> None:
        """Delete a lease or a member record, or recreate their bucket."""
        leases = self._stores.store(CLAIMS)
        keys = leases.keys()
        if self._choices.share(f"{place}/all") < 0.3:
            leases.recreate()
        elif keys:
            with suppress(NotFoundError):
                await leases.delete(self._choices.pick(f"{place}/record", keys))

    # ---- promises

    async def _check(self) -> None:
        """Resume everything, and wait until every promise holds."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        while True:
            await self._resume_all()
            broken = [*self._ledger.broken, *self._unfinished()]
            if not broken or self._ledger.broken or clock() - begun > CALM_S:
                break
            await asyncio.sleep(0.05 + (clock() - begun) / 4)
        if broken:
            faults = "; ".join(map(str, self.faults.happened))
            raise BrokenPromiseError(f"{'; '.join(broken)}; faults: {faults}")

    async def _resume_all(self) -> None:
        await self._record(b"false")
        for stored in self._primaries.stored():
            await self._annotate(stored.key, None)
        primaries = self._primaries
        if isinstance(primaries, MemoryStore):
            newest = [entries[-1] for entries in primaries.backup().entries.values() if entries]
            for entry in newest:
                if isinstance(entry, Deleted) and not entry.purged:  # it may be paused
                    await primaries.delete(entry.key, purge=True)

    def _unfinished(self) -> list[str]:
        """Return the promises that do not hold yet."""
        primaries = self._primaries.stored()
        wanted = {stored.key: text_in(stored.value) for stored in primaries}
        held = [stored.key for stored in primaries if b"deletionTimestamp" in stored.value]
        lacks = [f"{key} is held" for key in held]
        if self._group.cloud:
            return [*lacks, *_differences("cloud", wanted, self._cloud())]
        named = {f"{key}.{text}": text for key, text in wanted.items()}
        signs = self._stores.store(SIGNS).stored()
        posters = self._stores.kube.store(POSTERS).stored()
        hung = {stored.key: text_in(stored.value) for stored in signs}
        posted = {stored.key.rpartition("/")[2]: text_in(stored.value) for stored in posters}
        return [
            *lacks,
            *_differences("signs", named, hung),
            *_differences("posters", named, posted),
        ]

    def _cloud(self) -> dict[str, str]:
        """Return the texts in the cloud of the ledger, or in that of managed objects."""
        external = self._network.externals.get(CLOUD)
        resources = {} if external is None else external.resources
        return self._ledger.cloud | {key: fields["text"] for key, fields in resources.items()}

    @property
    def _primaries(self) -> MemoryStore | MemoryManifestStore:
        return store_of(self._stores, self._group.kind)


def document_of(kind: Kind[Any], name: str, text: str) -> Document:
    """Return an object with this text, as a user writes it."""
    if not isinstance(kind, KubeKind):
        return {"spec": {"text": text}}
    metadata = {"name": name, "namespace": NAMESPACE}
    head = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    return {**head, "spec": {"text": text}}


def text_in(value: bytes) -> str:
    """Return the text of a thing, a widget or a poster."""
    document = documents.parse(value)
    fields = document.get("spec", document.get("data"))
    return str(fields.get("text")) if isinstance(fields, dict) else ""


def _differences(place: str, wanted: dict[str, str], actual: dict[str, str]) -> list[str]:
    return [
        f"{place}: {key} has {actual.get(key)!r} instead of {wanted.get(key)!r}"
        for key in sorted({*wanted, *actual})
        if actual.get(key) != wanted.get(key)
    ]


def storm_faults(choices: Choices) -> Faults:
    """Return many faults; the calls and the watch of each store have their own rate and types."""

    def fault_at(call: SimulatedCall, types: tuple[FaultType, ...]) -> Fault | None:
        happened = [fault.fault for fault in faults.happened]
        store = call.target.partition("/")[0]
        source = f"watch/{store}" if call.operation == "event" else store
        drawn = choices.draw(f"fault/{call.operation}/{call.target}/{call.number}")
        if len(happened) >= FAULTS_MAX or drawn.share() >= choices.pick(f"rate/{source}", RATES):
            return None
        allowed = [
            fault_type
            for fault_type in types
            if choices.share(f"{source}/{fault_type.value}") < ALLOWED_SHARE
        ]
        if not allowed:
            return None
        fault_type = allowed[int(drawn.share() * len(allowed))]
        crashes = sum(earlier in CRASHES for earlier in happened)
        if fault_type in CRASHES and crashes >= CRASHES_MAX:
            return None
        if fault_type is FaultType.JUMP and happened.count(fault_type) >= JUMPS_MAX:
            return None
        lengths = JUMPS_S if fault_type is FaultType.JUMP else SECONDS
        return Fault(fault_type, call, lengths[int(drawn.share() * len(lengths))])

    faults = Faults(fault_at)
    return faults
