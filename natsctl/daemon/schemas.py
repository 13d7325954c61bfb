"""Publishes the schemas of kinds, so that commands know the types without the code."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import count

import msgspec

from natsctl.controller.controller import Controller
from natsctl.core.compare_and_set import read, rewrite
from natsctl.core.retry import backoff
from natsctl.daemon.kinds import kinds_of
from natsctl.daemon.operator import Runnable
from natsctl.errors import PermissionDeniedError, StoreError, UsageError
from natsctl.model.kinds import KvKind
from natsctl.model.schemas.kind_schema import SCHEMAS, KindSchema, has_schema
from natsctl.model.store import Store, Stored, Stores
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

RETRY_S = 1.0
RETRY_MAX_S = 60.0


def schemas_of(controllers: Iterable[Controller | Runnable]) -> list[KindSchema]:
    """Return the schemas of the kinds in NATS whose values are JSON of a known type.

    Each kind occurs once, in its most important role. A type that has no JSON Schema is left out.
    """
    schemas: dict[str, KindSchema] = {}
    for controller in controllers:
        version = getattr(controller, "version", "")
        for used in kinds_of(controller):
            if not isinstance(used.kind, KvKind) or not has_schema(used.kind):
                continue
            try:
                schema = KindSchema.of(
                    used.kind,
                    controller=controller.name,
                    controller_version=version,
                    role=used.role,
                )
            except UsageError as error:
                log.warning("a kind has no schema", kind=used.kind.name, error=error)
                continue
            known = schemas.get(schema.kind)
            if known is None or schema.replaces(known):
                schemas[schema.kind] = schema
    return list(schemas.values())


@asynccontextmanager
async def publishing(
    stores: Stores, controllers: Iterable[Controller | Runnable]
) -> AsyncIterator[None]:
    """Publish the schemas of the controllers' kinds once, while the context lasts.

    A failure never ends the context: without permission it's logged, and other failures are
    retried.
    """
    task = asyncio.create_task(_publish(stores, schemas_of(controllers)), name="schemas")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def publish(store: Store, schema: KindSchema) -> bool:
    """Store the schema unless a newer one is published; return whether it was written.

    *store* is the store of `SCHEMAS`. A stored schema that can't be read is replaced.
    """

    def change(current: Stored | None) -> bytes:
        published = None if current is None else KindSchema.parse(current.value)
        if current is not None and published is not None and not schema.replaces(published):
            return current.value
        return msgspec.json.encode(schema)

    rewritten = await rewrite(store, schema.key, change, seen=await read(store, schema.key))
    return rewritten.base is not None


async def _publish(stores: Stores, schemas: list[KindSchema]) -> None:
    for failures in count(1) if schemas else ():
        try:
            store = await stores.open(SCHEMAS)
            for schema in schemas:
                if await publish(store, schema):
                    log.info("published a schema", kind=schema.kind, version=schema.version)
        except PermissionDeniedError as error:
            log.warning(
                "cannot publish schemas, commands do not validate objects of this daemon's kinds",
                error=error,
            )
            return
        except StoreError as error:
            log.debug("cannot publish schemas yet", error=error)
            await asyncio.sleep(backoff(failures, base_s=RETRY_S, limit_s=RETRY_MAX_S))
        else:
            return
