"""Reads the columns that a command shows."""

from natsctl.cli.output.formats import Format
from natsctl.cli.output.printing import Output
from natsctl.daemon.published import declared_columns
from natsctl.jetstream.connection.connection import Connection
from natsctl.model.schemas.field_paths import Columns


async def columns_for(connection: Connection, bucket: str, output: Format) -> Columns:
    """Return the declared columns if the format is a table of them."""
    if output in (Output.TABLE, Output.WIDE):
        return await declared_columns(connection, bucket)
    return {}
