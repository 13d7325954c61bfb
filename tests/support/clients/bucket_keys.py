"""The keys and values of a bucket, as a NATS client without natsctl reads them."""

import asyncio
from contextlib import suppress

from nats.js.errors import NoKeysError
from nats.js.kv import KeyValue

TRIES = 10


async def keys(bucket: KeyValue) -> list[str]:
    """Return the keys of a bucket in order.

    nats-py raises `NoKeysError` also if the server has sent all keys, and this client has received
    none of them when it asks how many are pending. So this function tries again.
    """
    for _ in range(TRIES):
        with suppress(NoKeysError):
            return sorted(await bucket.keys())
    return []


async def values(bucket: KeyValue) -> dict[str, bytes]:
    """Return all keys and values of a bucket that nobody changes meanwhile."""
    entries = await asyncio.gather(*map(bucket.get, await keys(bucket)))
    return {entry.key: entry.value or b"" for entry in entries}
