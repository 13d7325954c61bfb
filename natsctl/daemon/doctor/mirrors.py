"""Looks for mirrors of buckets that answer reads with only some of the keys."""

from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

from natsctl.daemon.doctor.finding import CheckFinding, warning
from natsctl.errors import StoreError
from natsctl.jetstream.bucket import stream_of
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.store import all_streams


async def check_mirrors(
    connection: Connection, names: Iterable[str]
) -> AsyncIterator[CheckFinding]:
    """Warn of mirrors that answer reads of a bucket's keys and have only some of the keys.

    The servers spread the direct reads of other clients over the bucket and such mirrors.
    """
    buckets = {stream_of(name): name for name in names}
    with suppress(StoreError):  # the user may not list streams
        async for stream in all_streams(connection, "STREAM.LIST"):
            config = stream["config"]
            upstream = config.get("mirror") or {}
            origin = buckets.get(str(upstream.get("name")))
            partial_copy = upstream.get("filter_subject") or upstream.get("subject_transforms")
            if origin is not None and config.get("mirror_direct") and partial_copy:
                name = config["name"]
                yield warning(
                    f"mirrors of {origin}",
                    f"stream {name} has only some of the keys, or renames them, and answers reads "
                    f"of {origin}: the reads of other clients, such as nats kv get, miss keys at "
                    "times",
                    f"create {name} again without mirror_direct, or let it mirror all keys",
                )
