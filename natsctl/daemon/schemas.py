"""The published schemas of kinds, so that commands know the types without the code."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

import msgspec

from natsctl.controller.controller import Controller
from natsctl.core.compare_and_set import read, rewrite
from natsctl.core.retry import backoff
from natsctl.daemon.kinds import kinds_of
from natsctl.daemon.operator import Runnable
from natsctl.errors import PermissionDeniedError, StoreError, StoreMissingError, UsageError
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.feed import names
from natsctl.model.kinds import KvKind
from natsctl.model.schemas.field_paths import Columns, FieldPath, parse_columns
from natsctl.model.schemas.kind_schema import PREFIX, SCHEMAS, KindSchema, has_schema
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

    A failure never ends the context: without permission it is logged, and other failures are
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

    *store* is the store of `SCHEMAS`. A stored schema that cannot be read is replaced.
    """

    def change(current: Stored | None) -> bytes:
        published = None if current is None else KindSchema.parse(current.value)
        if current is not None and published is not None and not schema.replaces(published):
            return current.value
        return msgspec.json.encode(schema)

    rewritten = await rewrite(store, schema.key, change, seen=await read(store, schema.key))
    return rewritten.base is not None


async def _publish(stores: Stores, schemas: list[KindSchema]) -> None:
    failures = 0
    while schemas:
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
            failures += 1
            log.debug("cannot publish schemas yet", error=error)
            await asyncio.sleep(backoff(failures, base_s=RETRY_S, limit_s=RETRY_MAX_S))
        else:
            log.debug("all schemas are published", schemas=len(schemas))
            return


async def published_schemas(connection: Connection, bucket: str = "*") -> list[KindSchema]:
    """Return the schemas of the kinds of a bucket, by default of all buckets, sorted by kind.

    Returns none if no daemon has published one. A schema that cannot be read is left out. Raises
    `PermissionDeniedError` if the user may not read the bucket `natsctl`, and other `StoreError`s.
    """
    records = Bucket(connection, SCHEMAS.bucket)
    try:
        keys = await names(records, f"{PREFIX}.*.{bucket}")
        messages = await records.newest(keys)
    except StoreMissingError:
        return []
    schemas = (KindSchema.parse(message.value) for message in messages if not message.marker)
    return sorted((schema for schema in schemas if schema is not None), key=lambda s: s.kind)


async def declared_columns(connection: Connection, bucket: str) -> Columns:
    """Return the columns of a bucket's kinds, of the most important kind first.

    Returns none if the schemas cannot be read. A column that is not valid is left out.
    """
    try:
        schemas = await published_schemas(connection, bucket)
    except StoreError:  # a table without these columns is better than none
        return {}
    columns: dict[str, FieldPath] = {}
    for schema in sorted(schemas, key=lambda schema: schema.rank, reverse=True):
        try:
            parsed = parse_columns(schema.columns)
        except UsageError:
            continue
        columns = {**parsed, **columns}
    return columns
