"""A simulated cloud of disks, and a reconciler of the disks."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from natsctl import Controller, Kind, Manifest, Object, Primary, kube, kv, primary
from natsctl.core.backends import Send, StoreProxy, T
from natsctl.core.informer import Informer
from natsctl.core.writes import Writes
from natsctl.errors import NotFoundError, RetryAfter, StoreError
from natsctl.managed import (
    FINALIZER_NAME,
    AnnotationNames,
    ExternalClient,
    Managed,
    ManagedController,
    ManagedReconciler,
    Observation,
)
from natsctl.managed.links import RECORDS, resolve
from natsctl.model.store import Store
from natsctl.testing import MemoryRecorder, MemoryStore
from tests.support.stores import documents

NAMES = AnnotationNames()
EPOCH = datetime.now(UTC)


class DiskSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    size: int
    zone: str | None = None


class Disk(Object, frozen=True):
    spec: DiskSpec


DISKS = kv(Disk, bucket="disks")


def clock() -> datetime:
    return EPOCH + timedelta(seconds=asyncio.get_running_loop().time())


class Cloud:
    """A cloud: the sizes of disks by name, and the calls that it received, in order."""

    def __init__(self) -> None:
        self.disks: dict[str, int] = {}
        self.created: list[str] = []  # the key of every disk that was created
        self.calls: list[str] = []
        self.appears_after_s = 0.0
        self.goes_after_s = 0.0
        self.takes_s: dict[str, float] = {}
        self.failures: dict[str, Exception] = {}
        self.creates_and_fails = False
        self._seen_from: dict[str, float] = {}
        self._gone_from: dict[str, float] = {}

    async def call(self, name: str) -> None:
        self.calls.append(name)
        await asyncio.sleep(self.takes_s.get(name, 0.0))
        if name in self.failures:
            raise self.failures[name].with_traceback(None)  # which grows with each raise

    def size(self, name: str) -> int | None:
        """Return the size of a disk, or None if no disk of that name is visible."""
        now = asyncio.get_running_loop().time()
        if now >= self._gone_from.get(name, float("inf")):
            self.disks.pop(name, None)
            del self._gone_from[name]
        return self.disks.get(name) if now >= self._seen_from.get(name, 0.0) else None

    def create(self, key: str, name: str, size: int) -> None:
        """Add a disk, which is visible after `appears_after_s`."""
        assert name not in self.disks, f"{name} exists"
        self.disks[name] = size
        self.created.append(key)
        self._seen_from[name] = asyncio.get_running_loop().time() + self.appears_after_s

    def hide(self, name: str, seconds: float) -> None:
        """Let observations miss a disk for a time, as a replica does that lags."""
        self._seen_from[name] = asyncio.get_running_loop().time() + seconds

    def delete(self, name: str) -> None:
        """Remove a disk, which disappears after `goes_after_s`."""
        now = asyncio.get_running_loop().time()
        self._gone_from.setdefault(name, now + self.goes_after_s)
        self.size(name)


class CloudClient:
    """An `ExternalClient` of the cloud; disks have generated names, or their keys as names."""

    def __init__(self, cloud: Cloud, *, by_key: bool = False) -> None:
        self._cloud = cloud
        self._by_key = by_key

    async def observe(self, managed: Managed[Any]) -> Observation:
        await self._cloud.call("observe")
        size = self._cloud.size(managed.external_name)
        if size is None:
            return Observation()
        managed.status["size"] = size
        desired = managed.spec["size"]
        diff = "" if size == desired else f"size is {size}, not {desired}"
        return Observation(exists=True, up_to_date=not diff, diff=diff)

    async def create(self, managed: Managed[Any]) -> None:
        await self._cloud.call("create")
        number = len(self._cloud.created) + 1
        name = managed.external_name if self._by_key else f"disk-{number}"
        self._cloud.create(managed.key, name, managed.spec["size"])
        managed.external_name = name
        managed.status["lost"] = True
        if self._cloud.creates_and_fails:
            raise TimeoutError("the cloud did not respond")

    async def update(self, managed: Managed[Any]) -> None:
        await self._cloud.call("update")
        self._cloud.disks[managed.external_name] = managed.spec["size"]

    async def delete(self, managed: Managed[Any]) -> None:
        await self._cloud.call("delete")
        self._cloud.delete(managed.external_name)


class ManagedDisks(ManagedController[Disk]):
    """Manages the disks of a cloud. A subclass sets the cloud, in the class or in each instance."""

    kind = DISKS
    cloud: Cloud

    def __init__(self, cloud: Cloud | None = None, **targets: Any) -> None:
        super().__init__(**targets)
        if cloud is not None:
            self.cloud = cloud

    def reconciler(self, managed: Primary[Disk]) -> ManagedReconciler[Disk]:
        return ManagedReconciler(managed, connecter=self.connect, recorder=self, clock=clock)

    async def connect(self, _managed: Managed[Disk]) -> CloudClient:
        return CloudClient(self.cloud)


class ClusterDisks(ManagedController[Manifest]):
    """Manages disks that are custom resources, and whose names are generated or those of them."""

    kind = kube("example.org/v1", "Disk", namespace="shop")
    name = "cluster-disks"

    def __init__(self, cloud: Cloud, *, by_key: bool = False, **targets: Any) -> None:
        super().__init__(**targets)
        self.cloud, self.by_key = cloud, by_key

    def reconciler(self, managed: Primary[Manifest]) -> ManagedReconciler[Manifest]:
        return ManagedReconciler(
            managed,
            connecter=self.connect,
            external_name=(lambda disk: disk.key.rpartition("/")[2]) if self.by_key else None,
            recorder=self,
            clock=clock,
        )

    async def connect(self, _managed: Managed[Manifest]) -> CloudClient:
        return CloudClient(self.cloud, by_key=self.by_key)


def primary_of(store: Store, records: Store | None = None) -> Primary[Any]:
    """Return an unwatched primary over a store; `records` stores its links."""
    if records is None:
        return Primary(Informer(store, store.kind), Writes())

    async def open_records(_kind: Kind[Any]) -> Store:
        return records

    return Primary(Informer(store, store.kind), Writes(), open_records)


class Play:
    """A store of disks, the cloud, and a reconciler of the disks."""

    def __init__(
        self,
        *,
        store: Store | None = None,
        records: Store | None = None,
        cloud: Cloud | None = None,
        kind: Kind[Any] = DISKS,
        by_key: bool = False,
        client: Callable[[Cloud], ExternalClient[Any]] | None = None,
        **options: Any,
    ) -> None:
        self.store = MemoryStore(kind) if store is None else store
        self.cloud = Cloud() if cloud is None else cloud
        self.recorder = MemoryRecorder()
        self.records = MemoryStore(RECORDS) if records is None else records
        self.primary = primary_of(self.store, self.records)
        self._client = client
        self._by_key = by_key
        if by_key:
            options["external_name"] = lambda managed: managed.key
        options = {"connecter": self._connect, "recorder": self.recorder, "clock": clock, **options}
        self.reconciler: ManagedReconciler[Any] = ManagedReconciler(self.primary, **options)

    async def _connect(self, _managed: Managed[Any]) -> ExternalClient[Any]:
        await self.cloud.call("connect")
        if self._client is not None:
            return self._client(self.cloud)
        return CloudClient(self.cloud, by_key=self._by_key)

    def fail(self, error: StoreError | None) -> None:
        """Make every call of the stores of objects and records raise `error`; None ends that."""
        for store in (self.store, self.records):
            assert isinstance(store, MemoryStore)
            store.fail(error)

    def connect_with(self, client: Callable[[Cloud], ExternalClient[Any]]) -> None:
        self._client = client

    async def reconcile(self, key: str = "a") -> float | None:
        return await self.reconciler.reconcile(key)

    async def put(self, key: str = "a", size: int = 1, **annotations: str) -> None:
        """Write a disk; annotations have names without the domain, with `_` for `-`."""
        await self.edit(key, lambda document: document.update(spec={"size": size}), create=True)
        if annotations:
            await self.annotate(key, **annotations)

    async def annotate(self, key: str = "a", **annotations: str | None) -> None:
        """Set annotations of our domain; None removes one."""

        changed = {
            f"{NAMES.domain}/{word.replace('_', '-')}": value for word, value in annotations.items()
        }
        await documents.edit(self.store, key, metadata={"annotations": changed})

    async def edit(
        self, key: str, change: Callable[[dict[str, Any]], None], *, create: bool = False
    ) -> None:
        document: dict[str, Any] = {}
        try:
            document = await self.document(key)
        except NotFoundError:
            assert create
        change(document)
        await documents.put(self.store, key, document)

    async def document(self, key: str = "a") -> dict[str, Any]:
        return documents.parse((await self.store.get(key)).value)

    async def annotations(self, key: str = "a") -> dict[str, str]:
        """Return the annotations of our domain, by their names without the domain."""
        metadata = (await self.document(key)).get("metadata", {})
        return {
            name.removeprefix(f"{NAMES.domain}/"): value
            for name, value in metadata.get("annotations", {}).items()
        }

    async def conditions(self, key: str = "a") -> dict[str, tuple[str, str]]:
        entries = await self._conditions(key)
        return {name: (entry["status"], entry["reason"]) for name, entry in entries.items()}

    async def message(self, key: str = "a") -> str:
        return str((await self._conditions(key))["Synced"].get("message", ""))

    async def _conditions(self, key: str) -> dict[str, dict[str, str]]:
        status = (await self.document(key)).get("status", {})
        return {entry["type"]: entry for entry in status.get("conditions", ())}

    async def resolve(self, *, created: bool, external_name: str = "") -> None:
        await resolve(self.store, "a", created=created, external_name=external_name)

    async def finalizers(self, key: str = "a") -> list[str]:
        return list((await self.document(key)).get("metadata", {}).get("finalizers", []))

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.recorder.events]

    async def settle(self, key: str = "a", *, limit: int = 20) -> None:
        """Reconcile, after the requested delays, until only polling is left."""
        for _ in range(limit):
            try:
                after_s = await self.reconcile(key)
            except RetryAfter as retry:
                after_s = retry.delay_s
            if after_s is None or after_s >= 60:
                return
            await asyncio.sleep(after_s)
        raise AssertionError("the object did not converge")


HELD = [FINALIZER_NAME]
SYNCED = ("True", "ReconcileSuccess")
FAILED = ("False", "ReconcileError")


@asynccontextmanager
async def ran(controller: ManagedController[Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(controller.run())
    try:
        await controller.synced.wait()
        yield
    finally:
        controller.stop()
        await task


# ---- a controller whose disks are files, and whose process kills itself at a chosen call
#
# The folder in `DISKS_FOLDER` is the external system: a file per disk, and logs of creations and of
# points. Each external call and each write of a key has a point before its effect and one after it:
# the key, the call, and how often this process has passed it. The process removes the file `kill`
# and kills itself at the point that the file names.

FOLDER = Path(os.environ.get("DISKS_FOLDER", "."))


class Plan:
    """Kills this process at the point that the file `kill` names, once."""

    def __init__(self) -> None:
        self._passed: Counter[str] = Counter()

    @contextmanager
    def call(self, call: str, key: str) -> Iterator[None]:
        name = key.rpartition(".")[2]  # a record's key begins with the bucket
        self._pass(f"{name} before {call}")
        yield
        self._pass(f"{name} after {call}")

    def _pass(self, point: str) -> None:
        self._passed[point] += 1
        line, kill = f"{point} {self._passed[point]}\n", FOLDER / "kill"
        with (FOLDER / "points").open("a") as log:
            log.write(line)
        if kill.exists() and kill.read_text() == line:
            kill.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


class Files:
    """The `ExternalClient` of the folder; the name of a disk is the key of its object."""

    async def observe(self, managed: Managed[Disk]) -> Observation:
        file = FOLDER / "disks" / managed.external_name
        if not file.exists():
            return Observation()
        return Observation(
            exists=True, up_to_date=file.read_text() == str(managed.object.spec.size)
        )

    async def create(self, managed: Managed[Disk]) -> None:
        with (FOLDER / "created").open("a") as log:
            log.write(f"{managed.key}\n")
        with (FOLDER / "disks" / managed.external_name).open("x") as file:
            file.write(str(managed.object.spec.size))

    async def update(self, managed: Managed[Disk]) -> None:
        (FOLDER / "disks" / managed.external_name).write_text(str(managed.object.spec.size))

    async def delete(self, managed: Managed[Disk]) -> None:
        (FOLDER / "disks" / managed.external_name).unlink(missing_ok=True)


class Disks(Controller):
    """Creates, updates and deletes files as the bucket requires."""

    disks = primary(DISKS)
    sync_timeout_s = 120.0

    async def start(self) -> None:
        plan = Plan()
        store: Any = MortalStore(self.disks.informer.store, plan.call, "object")

        async def open_records(kind: Kind[Any]) -> Any:
            assert self.disks.open_store is not None
            records = await self.disks.open_store(kind)
            return MortalStore(records, plan.call, "record")

        watched = Primary[Disk](Informer(store, DISKS), Writes(), open_records, self.disks.queue)

        async def connect(_managed: Managed[Disk]) -> MortalClient:
            return MortalClient(Files(), plan.call)

        self.reconciler = ManagedReconciler(
            watched,
            connecter=connect,
            external_name=lambda managed: managed.key,
            creation_grace_period_s=0.0,
        )

    async def sync_handler(self, key: str) -> float | None:
        return await self.reconciler.reconcile(key)


Around = Callable[[str, str], AbstractContextManager[None]]
"""Returns the context of a call, which has a name, for a key."""


class MortalClient:
    """An `ExternalClient` that makes each call of another one within the context `around`."""

    def __init__(self, client: ExternalClient[Any], around: Around) -> None:
        self._client = client
        self._around = around

    async def observe(self, managed: Managed[Any]) -> Observation:
        with self._around("observe disk", managed.key):
            return await self._client.observe(managed)

    async def create(self, managed: Managed[Any]) -> None:
        with self._around("create disk", managed.key):
            await self._client.create(managed)

    async def update(self, managed: Managed[Any]) -> None:
        with self._around("update disk", managed.key):
            await self._client.update(managed)

    async def delete(self, managed: Managed[Any]) -> None:
        with self._around("delete disk", managed.key):
            await self._client.delete(managed)


class MortalStore(StoreProxy):
    """A store that makes each call of `store` within the context `around`."""

    def __init__(self, store: Store, around: Around, what: str = "") -> None:
        super().__init__(store)
        self._around = around
        self._what = what

    async def _call(self, verb: str, key: str, send: Send[T], *_: Any, **__: Any) -> T:
        with self._around(f"{verb} {self._what}", key):
            return await send()
