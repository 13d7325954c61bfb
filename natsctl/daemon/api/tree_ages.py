"""Since when the objects of a tree are as they are."""

import logging

from msgspec.structs import replace

from natsctl.core.insight.tree import Branch
from natsctl.errors import StoreError
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.connection.connection import Connection

log = logging.getLogger(__name__)

DATED_MAX = 100  # objects of which that is asked


async def dated(connection: Connection, top: Branch) -> Branch:
    """Return the tree with the times of what is kept in NATS, read at the buckets' leaders.

    Where a leader does not tell, or there are too many objects, times stay unknown.
    """
    wanted = [each for each in (top, *top.branches) if each.bucket and each.revision][:DATED_MAX]
    times: dict[tuple[str, int], str] = {}
    for bucket in {each.bucket for each in wanted}:
        keys = [each.key for each in wanted if each.bucket == bucket]
        try:
            found = await Bucket(connection, bucket).newest(keys)
        except StoreError as error:
            log.debug("since when the objects of %s are so is not known: %s", bucket, error)
        else:
            times |= {(bucket, message.revision): message.created for message in found}
    return _with(top, times)


def _with(branch: Branch, times: dict[tuple[str, int], str]) -> Branch:
    created = times.get((branch.bucket, branch.revision or 0), branch.created)
    branches = tuple(_with(each, times) for each in branch.branches)
    return replace(branch, created=created, branches=branches)
