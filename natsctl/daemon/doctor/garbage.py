"""Checks whether garbage collection is held until a person accepts a bucket."""

from collections.abc import AsyncIterator, Sequence

from natsctl.controller.garbage.evidence import MEMORY
from natsctl.core.objects.compare_and_set import read
from natsctl.daemon.doctor.finding import Finding, warning
from natsctl.daemon.doctor.used_buckets import Used
from natsctl.errors import InvalidObjectError, StoreError
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.bucket.store import KvStore
from natsctl.jetstream.connection.connection import Connection


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
