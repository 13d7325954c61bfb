"""Whether the bucket of leases is as those need it who hold them."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from natsctl.daemon.bucket_checks import check_bucket, sound
from natsctl.daemon.finding import Finding, failed
from natsctl.daemon.used import Used
from natsctl.kv.bucket import NANOSECONDS, Bucket
from natsctl.kv.connection import Connection
from natsctl.kv.lease import EXPIRE, LEASES

ANEW = "stop the daemons and delete it: the first lease makes it anew"


async def check_leases(
    connection: Connection, leases: Sequence[Used], ttl_s: float
) -> AsyncIterator[Finding]:
    """Give what is found of the bucket, where there are *leases*; each lives for *ttl_s*."""
    if leases:
        bucket = Bucket(connection, LEASES.bucket)
        async for finding in check_bucket(bucket, leases, partial(_fit, ttl_s)):
            yield finding


def _fit(ttl_s: float, bucket: Bucket, _used: Sequence[Used], info: dict[str, Any]) -> Finding:
    """Return whether leases can be written there, and stay for long enough; a `Look`."""
    check, config = f"bucket {bucket.name}", info["config"]
    if not config.get("allow_msg_ttl"):
        return failed(check, "no lease can be written: single messages cannot expire there", ANEW)
    age_s = config.get("max_age", 0) / NANOSECONDS
    if 0 < age_s < EXPIRE * ttl_s:
        found = f"it forgets everything after {age_s:g} s: two could lead at once"
        return failed(check, found, ANEW)
    return sound(bucket, info)
