"""Runs a controller once without a daemon: to inspect it, to sync keys, or to collect garbage."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from natsctl.controller.controller import Controller
from natsctl.controller.garbage.evidence import MEMORY
from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots.declare import only_primary
from natsctl.controller.slots.owners import OwnerNames
from natsctl.core.readers import Primary
from natsctl.core.task_group import for_each
from natsctl.errors import InvalidObjectError, NotFoundError
from natsctl.model.kinds import KvKind
from natsctl.model.store import ManifestStores, Stores
from natsctl.model.write_guard import WriteGuard

SYNC_TIMEOUT_S = 5.0  # a watch that is broken after this time is an error


class SyncResult(msgspec.Struct, frozen=True):
    """The result of a key's sync: `error` is None if it succeeded."""

    key: str
    error: Exception | None


class _NoNewBuckets(WriteGuard):
    """Forbids the creation of buckets, except the one in which natsctl keeps its own records."""

    def may_create(self, kind: KvKind[Any]) -> bool:
        return kind.bucket == MEMORY.bucket


@asynccontextmanager
async def inspecting(
    controller: Controller,
    nats: Stores,
    kube: ManifestStores | None = None,
    *,
    owner_names: OwnerNames | None = None,
) -> AsyncIterator[ControllerRuntime]:
    """Yield the controller's runtime with synced caches and without running workers.

    *owner_names* are the labels that link secondaries to primaries. Garbage collection plans have
    no grace period, because a person reads a plan before applying it. Raises `StoreMissingError` if
    a bucket or a kind of the cluster does not exist, and the error of a cache that does not sync.
    """
    controller.garbage = msgspec.structs.replace(controller.garbage, grace_s=0.0)
    existing = nats.guarded(_NoNewBuckets())
    runtime = ControllerRuntime(controller, nats=existing, kube=kube, owner_names=owner_names)
    async with runtime.opened():
        await _wait_synced(runtime)
        yield runtime


def primaries(runtime: ControllerRuntime) -> list[str]:
    """Return the keys of all primaries, valid or not."""
    slot = only_primary(type(runtime.controller))
    primary: Primary[Any] = vars(runtime.controller)[slot.name]
    return sorted({*primary.keys(), *runtime.status().invalid})


async def sync_once(
    runtime: ControllerRuntime, keys: Sequence[str], report: Callable[[SyncResult], None]
) -> None:
    """Sync each key once, several at a time, and call *report* with each result."""
    controller = runtime.controller
    await controller.start()

    async def sync(key: str) -> None:
        report(await _sync(runtime, key))

    try:
        await for_each(keys, sync, workers=controller.workers)
    finally:
        await controller.clean()


async def _sync(runtime: ControllerRuntime, key: str) -> SyncResult:
    explanation = runtime.explain(key)
    if explanation.invalid:
        return SyncResult(key, InvalidObjectError(explanation.invalid))
    if not explanation.exists and not any(explanation.owned.values()):
        return SyncResult(key, NotFoundError("it does not exist"))
    try:
        await runtime.sync(key)
    except Exception as error:  # noqa: BLE001 - any error of a handler is its key's failure
        return SyncResult(key, error)
    return SyncResult(key, None)


async def _wait_synced(runtime: ControllerRuntime) -> None:
    while True:
        try:
            async with asyncio.timeout(SYNC_TIMEOUT_S):
                return await runtime.complete()
        except TimeoutError:
            if runtime.failure is not None:
                raise runtime.failure from None
