"""Checks whether garbage collection is held until a person accepts a bucket."""

from collections.abc import AsyncIterator, Sequence

from natsctl.core.evidence import MEMORY
from natsctl.core.write import read
from natsctl.daemon.finding import Finding, warning
from natsctl.daemon.used import Used
from natsctl.errors import InvalidObjectError, StoreError
from natsctl.kv.bucket import Bucket
from natsctl.kv.connection import Connection
from natsctl.kv.store import KvStore


async def check_garbage(connection: Connection, used: Sequence[Used]) -> AsyncIterator[Finding]:
    """Give a warning for each controller whose garbage collection is held, with the reason."""
    store = KvStore(Bucket(connection, MEMORY.bucket), MEMORY)
    for controller in dict.fromkeys(each.controller for each in used):
        try:
            stored = await read(store, f"gc.{controller}")
            held = "" if stored is None else MEMORY.decode(stored.value).held
        except (StoreError, InvalidObjectError):
            continue  # the checks of buckets and permissions report it
        if held:
            advice = f"look at natsctl gc plan, then natsctl gc accept -c {controller}"
            yield warning(f"garbage of {controller}", f"collection is held: {held}", advice)
