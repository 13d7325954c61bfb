"""Whether the bucket of leases is as those need it who hold them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

from natsctl.core.coordination.lease import TTL_MIN_S, Workload, claim_of
from natsctl.core.coordination.member_record import members_of
from natsctl.core.coordination.participant import foreign
from natsctl.daemon.doctor.buckets import check_bucket, sound
from natsctl.daemon.doctor.finding import Finding, failed
from natsctl.daemon.doctor.used_buckets import Used
from natsctl.errors import StoreError
from natsctl.jetstream.bucket.bucket import NANOSECONDS, Bucket
from natsctl.jetstream.bucket.leases import EXPIRE, LEASES, LeaseStore
from natsctl.jetstream.connection.connection import Connection

ANEW = "stop the daemons and delete it: the first lease makes it anew"


async def check_leases(
    connection: Connection, leases: Sequence[Used], ttl_s: float
) -> AsyncIterator[Finding]:
    """Check the bucket if there are *leases*, each of which lives for *ttl_s*."""
    if leases:
        bucket = Bucket(connection, LEASES.bucket)
        async for finding in check_bucket(bucket, leases, partial(_fit, ttl_s)):
            yield finding


async def check_holders(
    connection: Connection, owners: Mapping[str, str]
) -> AsyncIterator[Finding]:
    """Give a failure for each controller whose lease or keys another application has.

    *owners* are the kinds of the controllers' primaries, by the controllers' names. Nothing is
    found if the leases cannot be read.
    """
    store = LeaseStore(connection, ttl_s=TTL_MIN_S)
    for name, owner in owners.items():
        try:
            holders = await _holders(store, name)
        except StoreError:
            continue
        work = Workload(owner)
        for holder, theirs in holders:
            if not work.same(theirs):
                advice = "give one of the two controllers another name, and run it again"
                yield failed(f"lease {name}", foreign(name, holder, theirs, work), advice)
                break


async def _holders(store: LeaseStore, name: str) -> list[tuple[str, Workload]]:
    """Return who leads the controller or shares its keys, and on what each works."""
    claims = [claim_of(stored.value) for stored in await store.living(name)]
    records = await members_of(store, name)
    return [
        *((claim.holder, claim.work) for claim in claims if claim and not claim.released),
        *((record.holder, record.work) for record in records.values()),
    ]


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
