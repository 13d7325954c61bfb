"""Doing a controller's work once, without a daemon: looking, syncing, collecting."""

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
from natsctl.core.objects.primary import Primary
from natsctl.core.task_group import together
from natsctl.errors import InvalidObjectError, NotFoundError
from natsctl.model.kinds import KvKind
from natsctl.model.store import ManifestStores, Stores
from natsctl.model.write_guard import WriteGuard

PATIENCE_S = 5.0  # how long a broken watch may stay broken before that is the answer


class Visited(msgspec.Struct, frozen=True):
    """What came of a key: `error` is None where its sync went well."""

    key: str
    error: Exception | None


class _NoNewBuckets(WriteGuard):
    """Forbids the creation of buckets, except the one in which natsctl keeps its own records."""

    def may_create(self, kind: KvKind[Any]) -> bool:
        return kind.bucket == MEMORY.bucket


@asynccontextmanager
async def looking(
    controller: Controller,
    nats: Stores,
    kube: ManifestStores | None = None,
    *,
    owner_names: OwnerNames | None = None,
) -> AsyncIterator[ControllerRuntime]:
    """Give the controller's runtime with every cache complete, and nothing running.

    *owner_names* are the labels that link secondaries to primaries. A plan made here has no grace:
    whoever carries it out has looked at it. Raises `StoreMissingError` for a bucket or a kind of
    the cluster that does not exist, and why a cache cannot be had.
    """
    controller.garbage = msgspec.structs.replace(controller.garbage, grace_s=0.0)
    existing = nats.guarded(_NoNewBuckets())
    runtime = ControllerRuntime(controller, nats=existing, kube=kube, owner_names=owner_names)
    async with runtime.opened():
        await _complete(runtime)
        yield runtime


def primaries(runtime: ControllerRuntime) -> list[str]:
    """Return the keys of all primaries, valid or not."""
    slot = only_primary(type(runtime.controller))
    primary: Primary[Any] = vars(runtime.controller)[slot.name]
    return sorted({*primary.keys(), *runtime.status().invalid})


async def sync_once(
    runtime: ControllerRuntime, keys: Sequence[str], told: Callable[[Visited], None]
) -> None:
    """Sync each key once, several at a time; *told* is called with what came of each."""
    controller = runtime.controller
    await controller.start()
    remaining = iter(keys)

    async def work() -> None:
        for key in remaining:
            told(await _visited(runtime, key))

    try:
        async with together() as group:
            for _ in range(min(controller.workers, len(keys))):
                group.create_task(work())
    finally:
        await controller.clean()


async def _visited(runtime: ControllerRuntime, key: str) -> Visited:
    known = runtime.explain(key)
    if known.invalid:
        return Visited(key, InvalidObjectError(known.invalid))
    if not known.exists and not any(known.owned.values()):
        return Visited(key, NotFoundError("it does not exist"))
    try:
        await runtime.sync(key)
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is its key's failure
        return Visited(key, error)
    return Visited(key, None)


async def _complete(runtime: ControllerRuntime) -> None:
    while True:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await runtime.complete()
        except TimeoutError:
            if runtime.failure is not None:
                raise runtime.failure from None
