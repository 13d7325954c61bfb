"""Reads the schemas that daemons have published."""

from collections.abc import Iterable, Sequence

import msgspec

from natsctl.cli.framework.controllers import load_runnable_controller
from natsctl.daemon.schemas import schemas_of
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import DECODE_ERRORS, NotFoundError, StoreMissingError, UsageError
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.connection.connection import Connection, connect
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.schemas.kind_schema import PREFIX, SCHEMAS, KindSchema

KINDS_MAX = 10
"""Kinds that an error lists."""


async def known_schemas(options: NatsOptions, controllers: Sequence[str]) -> list[KindSchema]:
    """Return the schemas that the controllers at these paths declare; without any, the published.

    Raises as `load_runnable_controller` and `published_schemas` do.
    """
    if controllers:
        return schemas_of([load_runnable_controller(path) for path in controllers])
    async with connect(options) as connection:
        return await published_schemas(connection)


async def published_schemas(connection: Connection, bucket: str = "*") -> list[KindSchema]:
    """Return the schemas of the kinds of a bucket, by default of all buckets, sorted by kind.

    Returns none if no daemon has published one. A schema that cannot be read is left out. Raises
    `PermissionDeniedError` if the user may not read the bucket `natsctl`, and other `StoreError`s.
    """
    records = Bucket(connection, SCHEMAS.bucket)
    try:
        keys = await records.keys(f"{PREFIX}.*.{bucket}")
        messages = await records.newest(keys)
    except StoreMissingError:
        return []
    schemas = (_schema(message.value) for message in messages if not message.marker)
    return sorted((schema for schema in schemas if schema is not None), key=lambda s: s.kind)


def schema_for(schemas: Iterable[KindSchema], key: str) -> KindSchema | None:
    """Return the schema of the object *key*; if several match, the one that outranks the others."""
    chosen: KindSchema | None = None
    for schema in schemas:
        if schema.describes(key) and (chosen is None or schema.outranks(chosen)):
            chosen = schema
    return chosen


def _schema(value: bytes) -> KindSchema | None:
    try:
        return msgspec.json.decode(value, type=KindSchema)
    except DECODE_ERRORS:
        return None


def split_path(schemas: Sequence[KindSchema], path: str) -> tuple[KindSchema, list[str]]:
    """Return the schema that *path* begins with, and the names of the fields that follow.

    A path such as `Shop.spec.text` begins with the name of a kind, of its type or of its bucket.
    Raises `NotFoundError` if there is no such kind, and `UsageError` if several match.
    """
    matching: dict[str, list[KindSchema]] = {}
    for schema in schemas:
        for name in dict.fromkeys((schema.kind, schema.kind.partition(".")[0], schema.bucket)):
            if f"{path}.".startswith(f"{name}."):
                matching.setdefault(name, []).append(schema)
    if not matching:
        raise NotFoundError(_unknown(schemas, path))
    name = max(matching, key=len)
    chosen, *others = matching[name]
    if others:
        kinds = ", ".join(schema.kind for schema in matching[name])
        raise UsageError(f"{name} names several kinds: {kinds}; write the whole name of one")
    return chosen, [field for field in path[len(name) :].split(".") if field]


def _unknown(schemas: Sequence[KindSchema], path: str) -> str:
    names = [name for schema in schemas for name in (schema.kind.partition(".")[0], schema.bucket)]
    if not names:
        return (
            f"there is no schema of {path}: no daemon has published one; run a daemon, or name "
            "the controller with --controller"
        )
    hint = did_you_mean(path.partition(".")[0], names)
    kinds = ", ".join(schema.kind for schema in schemas[:KINDS_MAX])
    return f"there is no schema of {path}{hint or f': there are {kinds}'}"
