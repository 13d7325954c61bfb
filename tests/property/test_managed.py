"""Property tests of a managed object: whatever happens, no resource is lost or harmed.

People, strangers, lost answers and crashes act on an object and its cloud in any order. The cloud
itself checks each call: nothing that natsctl didn't make is changed or removed, nothing alive is
deleted, and no object gets a second disk.
"""

import asyncio
import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from natsctl import ConflictError, NotFoundError, Primary, StoreTimeoutError, kv
from natsctl.managed import Managed, ManagedController, ManagedReconciler, Observation
from natsctl.testing import in_virtual_time
from tests.support.controllers.app_controller import SlowStore, SlowStores
from tests.support.controllers.disk_reconciler import DISKS, Disk, clock

Step = tuple[Any, ...]

FORGETFUL = kv(Disk, bucket="disks", history=1)  # only the record has the link after a plain put

KEY, STRANGERS = "a", "b"
"""The object, and the name of a disk that natsctl never makes."""
CALL_S, TIMEOUT_S = 0.02, 30.0

SIZES = st.sampled_from([1, 2])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), SIZES),
        st.tuples(st.just("put plainly"), SIZES),
        st.tuples(st.sampled_from(["delete", "delete raw", "remove disk", "stranger", "adopt"])),
        st.tuples(st.just("rename"), st.sampled_from([STRANGERS, "missing"])),
        st.tuples(st.just("calls"), st.sampled_from(["", "refused", "lost", "late"])),
        st.tuples(st.just("writes"), st.sampled_from(["", "refused", "lost"])),
        st.tuples(st.sampled_from(["stop", "kill", "start"])),
        st.tuples(st.just("wait"), st.sampled_from([0.01, 0.03, 0.3, 5.0, 100.0])),
    ),
    max_size=30,
)


class CloudDisk(msgspec.Struct):
    size: int
    by: str  # the object for which natsctl made it; empty for a stranger's disk


class Cloud:
    """The outside system, its disks by name, and what natsctl did wrong in it."""

    def __init__(self, stores: "Stores", *, names_are_known: bool) -> None:
        self.disks: dict[str, CloudDisk] = {}
        self.trouble = ""
        self.permitted: set[str] = set()  # disks that somebody let the object take over
        self.left: set[str] = set()  # disks that somebody has turned the object away from
        self.violations: list[str] = []
        self.made = 0
        self.alive_before = False
        self.names_are_known = names_are_known
        self.kind = DISKS if names_are_known else FORGETFUL
        self._objects = stores.store(self.kind)

    async def alive(self) -> bool:
        with suppress(NotFoundError):
            metadata = json.loads((await self._objects.get(KEY)).value).get("metadata", {})
            return not metadata.get("deletionTimestamp")
        return False

    async def _call(self) -> None:
        await asyncio.sleep(CALL_S)
        if self.trouble == "refused":
            raise RuntimeError("refused on purpose")

    async def _answer(self) -> None:
        """Answer a write that took effect, unless the answer is lost or late."""
        if self.trouble == "lost":
            raise TimeoutError("lost on purpose")
        await asyncio.sleep(2 * TIMEOUT_S if self.trouble == "late" else CALL_S)

    async def observe(self, managed: Managed[Disk]) -> Observation:
        await self._call()
        disk = self.disks.get(managed.external_name)
        return Observation(
            exists=disk is not None,
            up_to_date=disk is not None and disk.size == managed.object.spec.size,
        )

    async def create(self, managed: Managed[Disk]) -> None:
        await self._call()
        if managed.external_name in self.disks:
            raise RuntimeError(f"{managed.external_name} exists")
        own = [name for name, disk in self.disks.items() if disk.by and name not in self.left]
        if own:
            self.violations.append(f"a second disk beside {own}")
        self.made += 1
        name = managed.external_name or f"disk-{self.made}"
        self.disks[name] = CloudDisk(managed.object.spec.size, by=managed.key)
        managed.external_name = name
        await self._answer()

    async def update(self, managed: Managed[Disk]) -> None:
        await self._call()
        self._check(managed.external_name, "changed")
        if managed.external_name in self.disks:
            self.disks[managed.external_name].size = managed.object.spec.size
        await self._answer()

    async def delete(self, managed: Managed[Disk]) -> None:
        alive = self.alive_before and await self.alive()
        await self._call()
        self._check(managed.external_name, "deleted")
        if alive:
            self.violations.append("deleted the disk of an object that's alive")
        self.disks.pop(managed.external_name, None)
        await self._answer()

    def _check(self, name: str, verb: str) -> None:
        disk = self.disks.get(name)
        if disk is not None and not disk.by and name not in self.permitted:
            self.violations.append(f"{verb} {name}, which a stranger made")


class Disks(ManagedController[Disk]):
    kind = DISKS

    def __init__(self, cloud: Cloud, stores: "Stores") -> None:
        super().__init__(nats=stores)
        self.cloud = cloud

    def reconciler(self, managed: Primary[Disk]) -> ManagedReconciler[Disk]:
        return ManagedReconciler(
            managed,
            connecter=self.connect,
            external_name=(lambda disk: disk.key) if self.cloud.names_are_known else None,
            creation_grace_period_s=0.0,
            timeout_s=TIMEOUT_S,
            clock=clock,
        )

    async def connect(self, _managed: Managed[Disk]) -> Cloud:
        self.cloud.alive_before = await self.cloud.alive()
        return self.cloud


class Stores(SlowStores):
    """The stores of objects and links, whose answers can be refused or lost."""

    def trouble(self, trouble: str) -> None:
        for store in self._slow.values():
            store.fail(StoreTimeoutError("refused on purpose") if trouble == "refused" else None)
            store.answers_lost = 3 if trouble == "lost" else 0


class Model:
    """An object, its cloud, and a controller that comes and goes."""

    def __init__(self, *, names_are_known: bool) -> None:
        self.stores = Stores()
        self.cloud = Cloud(self.stores, names_are_known=names_are_known)
        self.objects: SlowStore = self.stores.store(self.cloud.kind)
        self.task: asyncio.Task[None] | None = None
        self.controller: Disks | None = None
        self.renamed = False
        self.withdrawn = False  # whether an adoption went with its object, perhaps unseen

    async def step(self, step: Step) -> None:
        match step:
            case ("wait", float(seconds)):
                await asyncio.sleep(seconds)
            case ("calls", str(trouble)):
                self.cloud.trouble = trouble
            case ("writes", str(trouble)):
                self.stores.trouble(trouble)
            case ("start",):
                self.start()
            case ("stop" | "kill" as action,):
                await self.end(kill=action == "kill")
            case ("stranger",):
                for name in (KEY, STRANGERS):
                    self.cloud.disks.setdefault(name, CloudDisk(9, by=""))
            case ("remove disk",):
                self.cloud.disks.clear()
            case _:
                await self.person(step)

    async def person(self, step: Step) -> None:
        """Change the object as a person does, who sees no lost answer."""
        stored = await self.objects.get(KEY) if KEY in set(self.objects.keys()) else None
        document = {} if stored is None else json.loads(stored.value)
        if self.cloud.permitted and step[0] in ("put plainly", "delete raw", "delete"):
            self.withdrawn = True
        match step:
            case ("put", int(size)):
                document["spec"] = {"size": size}
            case ("put plainly", int(size)):
                document = {"spec": {"size": size}}
            case ("delete raw",) if stored is not None:
                await self.objects.delete(KEY)
                return
            case ("delete",) if stored is not None:
                if not document.get("metadata", {}).get("finalizers"):
                    await self.objects.delete(KEY, revision=stored.revision)
                    return
                document["metadata"].setdefault("deletionTimestamp", clock().isoformat())
            case ("adopt",) if stored is not None:
                self.cloud.permitted |= {KEY, STRANGERS}
                _annotate(document, adopt="true")
            case ("rename", str(name)) if stored is not None:
                self.renamed = True
                self.cloud.permitted.add(name)
                self.cloud.left |= self.cloud.disks.keys()
                _annotate(document, **{"external-name": name})
            case _:
                return
        value = json.dumps(document).encode()
        if stored is None:
            await self.objects.create(KEY, value)
        else:
            await self.objects.update(KEY, value, revision=stored.revision)

    def start(self) -> None:
        if self.task is None:
            self.controller = Disks(self.cloud, self.stores)
            self.task = asyncio.create_task(self.controller.run())

    async def end(self, *, kill: bool) -> None:
        if self.task is None or self.controller is None:
            return
        if kill:
            self.task.cancel()
        self.controller.stop()
        await asyncio.wait((self.task,))
        if not self.task.cancelled():
            self.task.result()
        self.task = None

    async def settle(self) -> None:
        """End all trouble, and wait until everything is done that can be done."""
        self.cloud.trouble = ""
        self.stores.trouble("")
        self.start()
        await asyncio.sleep(5_000)
        await self.end(kill=False)


def _annotate(document: dict[str, Any], **annotations: str) -> None:
    known = document.setdefault("metadata", {}).setdefault("annotations", {})
    known.update({f"natsctl.io/{name}": text for name, text in annotations.items()})


@pytest.mark.parametrize("names_are_known", [True, False])
@given(STEPS)
@example([("put", 1), ("wait", 0.03), ("kill",), ("put plainly", 2), ("start",)])
@example([("put", 1), ("wait", 5.0), ("stop",), ("delete raw",), ("put", 2), ("start",)])
@example([("calls", "lost"), ("put", 1), ("wait", 5.0), ("kill",), ("calls", ""), ("delete",)])
@example([("calls", "lost"), ("put", 1), ("wait", 5.0), ("put plainly", 1), ("wait", 5.0)])
@example([("stranger",), ("put", 1), ("wait", 5.0), ("delete",), ("wait", 5.0)])
@example([("put", 1), ("stranger",), ("adopt",), ("put plainly", 1)])
@in_virtual_time
async def test_no_resource_is_lost_made_twice_or_harmed(
    names_are_known: bool,  # noqa: FBT001 - a parameter
    steps: list[Step],
) -> None:
    model = Model(names_are_known=names_are_known)
    model.start()
    for step in steps:
        with suppress(StoreTimeoutError, ConflictError):
            await model.step(step)
    await model.settle()
    cloud = model.cloud
    assert cloud.violations == []
    if model.renamed or not names_are_known:
        return
    own = {name: disk.size for name, disk in cloud.disks.items() if disk.by}
    if not await cloud.alive():
        assert own == {}
        return
    document = json.loads((await model.objects.get(KEY)).value)
    ready = {entry["type"]: entry["reason"] for entry in document["status"]["conditions"]}["Ready"]
    strangers = KEY in cloud.disks and not cloud.disks[KEY].by
    if strangers and (KEY not in cloud.permitted or (model.withdrawn and ready == "NotOwned")):
        assert (ready, own) == ("NotOwned", {})
    else:
        assert (ready, cloud.disks[KEY].size) == ("Available", document["spec"]["size"])
