"""Checks the records that natsctl keeps in NATS: installation, garbage collection and leases."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from natsctl.controller.garbage.evidence import MEMORY
from natsctl.core.compare_and_set import read
from natsctl.core.coordination.installation import INSTALLATION, known_installation
from natsctl.core.coordination.lease import (
    TTL_MIN_S,
    Workload,
    name_taken,
    record_in,
    record_key,
)
from natsctl.daemon.api.peers import ONE_CLUSTER
from natsctl.daemon.doctor.buckets import check_bucket, sound
from natsctl.daemon.doctor.finding import CheckFinding, failed, ok, warning
from natsctl.daemon.doctor.used_buckets import Used
from natsctl.errors import InvalidObjectError, PermissionDeniedError, StoreError, StoreMissingError
from natsctl.jetstream.bucket import NANOSECONDS, Bucket
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.store import EXPIRE, LEASES, KvStore, LeaseStore

INSTALLATION_CHECK = "installation"
NO_INSTALLATION = "it has no id yet: the first daemon creates one"
RECREATE = "stop the daemons and delete the bucket: the first lease creates it again"


async def check_installation(connection: Connection) -> AsyncIterator[CheckFinding]:
    """Yield the id of the installation, or the reason why it cannot be read."""
    check, store = (
        INSTALLATION_CHECK,
        KvStore(Bucket(connection, INSTALLATION.bucket), INSTALLATION),
    )
    try:
        current = await known_installation(store)
    except StoreMissingError:
        yield ok(check, NO_INSTALLATION)
    except PermissionDeniedError as error:
        yield ok(check, f"only daemons need to read it: {error}")
    except (StoreError, InvalidObjectError) as error:
        yield failed(check, str(error), f"see nats kv get {INSTALLATION.bucket} installation")
    else:
        adopted = ", ".join(current.adopted) if current else ""
        objects = f", with the objects of {adopted}" if adopted else ""
        yield ok(check, f"{current.id}{objects}" if current else NO_INSTALLATION)


async def check_garbage(
    connection: Connection, used: Sequence[Used]
) -> AsyncIterator[CheckFinding]:
    """Yield a warning, with the reason, for each controller whose garbage collection is held."""
    store = KvStore(Bucket(connection, MEMORY.bucket), MEMORY)
    for controller in dict.fromkeys(use.controller for use in used):
        try:
            stored = await read(store, f"gc.{controller}")
            held = "" if stored is None else MEMORY.decode(stored.value).held
        except (StoreError, InvalidObjectError):
            continue  # the checks of buckets and permissions report the error
        if held:
            advice = f"run natsctl gc plan, then natsctl repair gc -c {controller}"
            yield warning(f"garbage of {controller}", f"collection is held: {held}", advice)


async def check_leases(
    connection: Connection, leases: Sequence[Used], ttl_s: float
) -> AsyncIterator[CheckFinding]:
    """Check the bucket of leases, if there are *leases*; each has a time to live of *ttl_s*."""
    if leases:
        bucket = Bucket(connection, LEASES.bucket)
        async for finding in check_bucket(bucket, leases, partial(_fit_for_leases, ttl_s)):
            yield finding


async def check_holders(
    connection: Connection,
    owners: Mapping[str, str],
    clusters: Callable[[], Awaitable[Mapping[str, str]]],
) -> AsyncIterator[CheckFinding]:
    """Yield a failure for each controller that another application or another cluster has.

    *owners* are the kinds of the primaries by controller. *clusters* returns the identities of
    their clusters, and is called only if a record names a cluster. A lease that cannot be read
    causes no finding.
    """
    store = LeaseStore(connection, ttl_s=TTL_MIN_S)
    for name, owner in owners.items():
        try:
            stored = await read(store, record_key(name))
        except StoreError:
            continue
        record, masks = record_in(None if stored is None else stored.value)
        if record is None or not masks:
            continue
        cluster = (await clusters()).get(name, "") if record.work.cluster else ""
        expected, holder = Workload(owner, cluster=cluster), next(iter(masks))
        if not expected.same(record.work):
            advice = "give one of the two controllers another name, and run it again"
            if expected.only_elsewhere(record.work):
                advice = ONE_CLUSTER
            yield failed(f"lease {name}", name_taken(name, holder, record.work, expected), advice)


def _fit_for_leases(
    ttl_s: float, bucket: Bucket, _used: Sequence[Used], info: dict[str, Any]
) -> CheckFinding:
    """Return whether leases can be written to the bucket and stay for long enough; an `Assess`."""
    check, config = f"bucket {bucket.name}", info["config"]
    if not config.get("allow_msg_ttl"):
        found = "leases cannot be written: the bucket does not allow a TTL per message"
        return failed(check, found, RECREATE)
    age_s = config.get("max_age", 0) / NANOSECONDS
    if 0 < age_s < EXPIRE * ttl_s:
        found = f"values expire after {age_s:g} s, so two processes could lead at once"
        return failed(check, found, RECREATE)
    return sound(bucket, info)
