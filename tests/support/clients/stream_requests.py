"""Requests to the stream of the bucket `things`, for tests of a connection."""

from natsctl.errors import StoreError
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.requests import revision_of

STREAM = {"name": "KV_things", "subjects": ["$KV.things.>"], "storage": "file"}


async def put(connection: Connection, key: str, value: bytes = b"x", after: int = 0) -> int:
    headers = {"Nats-Expected-Last-Subject-Sequence": str(after)}
    subject = f"{connection.options.publish_prefix}$KV.things.{key}"
    return revision_of((await connection.request(subject, value, headers=headers)).data)


async def messages(connection: Connection) -> int:
    info = await connection.api("STREAM.INFO.KV_things")
    return int(info["state"]["messages"])


async def works(connection: Connection) -> bool:
    try:
        return "limits" in await connection.api("INFO", timeout_s=30)
    except StoreError:
        return False


async def holds(connection: Connection, number: int) -> bool:
    return await messages(connection) == number
