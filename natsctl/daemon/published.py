"""Reads the schemas that daemons have published, and the columns that they declare."""

from natsctl.errors import StoreError, StoreMissingError, UsageError
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.feed import names
from natsctl.model.schemas.field_paths import Columns, FieldPath, parse_columns
from natsctl.model.schemas.kind_schema import PREFIX, SCHEMAS, KindSchema


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
