"""Reads the columns that the kinds of a bucket declare for tables."""

from natsctl.cli.output.formats import Format
from natsctl.cli.output.printing import Output
from natsctl.cli.schemas.published import published_schemas
from natsctl.errors import StoreError, UsageError
from natsctl.jetstream.connection.connection import Connection
from natsctl.model.schemas.field_paths import Columns, FieldPath, parse_columns


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


async def columns_for(connection: Connection, bucket: str, output: Format) -> Columns:
    """Return the declared columns if the format is a table of them."""
    if output in (Output.TABLE, Output.WIDE):
        return await declared_columns(connection, bucket)
    return {}
