"""Identifies the installation: the NATS system that has the owner of an object in a cluster.

Two NATS systems may run the same controller over one cluster, and then have owners of the same
kind and key. The id of the installation distinguishes them. It is random, kept in the bucket
`natsctl`, and created once. Secondaries in NATS have no such id, because they are in the same
system as their owner. The bucket also says which controllers several processes have run.
"""

import asyncio
import re
import secrets
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from natsctl.core.compare_and_set import read, rewrite
from natsctl.errors import ConflictError, PermissionDeniedError, StoreTimeoutError, UsageError
from natsctl.model.kinds import KvKind, kv
from natsctl.model.store import Store, Stores
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

KEY = "installation"
ID_BYTES = 8
DEADLINE_S = 10.0
RETRY_S = 0.1

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{3,62}")


class Installation(msgspec.Struct, frozen=True):
    """The id of this system, and the ids of lost installations whose objects it has adopted."""

    id: str
    adopted: tuple[str, ...] = ()


INSTALLATION: KvKind[Installation] = kv(
    Installation, bucket="natsctl", keys=KEY, history=1, replicas=None
)


async def known_installation(store: Store) -> Installation | None:
    """Return the stored installation, None if the store of `INSTALLATION` has none yet."""
    stored = await read(store, KEY)
    return None if stored is None else INSTALLATION.decode(stored.value)


async def installation(stores: Stores, *, deadline_s: float = DEADLINE_S) -> Installation:
    """Return the installation of this system; the first call creates its id.

    Concurrent calls return the same id. A request without an answer is repeated within
    *deadline_s*. Raises `StoreError` if the record cannot be read or created, and
    `InvalidObjectError` if it does not decode.
    """
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                with suppress(StoreTimeoutError):
                    return await _read_or_create(await stores.open(INSTALLATION))
                await asyncio.sleep(RETRY_S)
    except TimeoutError as error:
        raise StoreTimeoutError(
            f"the installation's id was not read from the bucket {INSTALLATION.bucket} "
            f"within {deadline_s:g} s"
        ) from error


async def adopt(stores: Stores, lost_id: str) -> Installation:
    """Adopt the objects of a lost installation, and return this one.

    Raises `UsageError` if *lost_id* is not an id, or is this installation's own.
    """
    _check(lost_id)
    store = await stores.open(INSTALLATION)
    current = await _read_or_create(store)
    if lost_id == current.id:
        raise UsageError(f"{lost_id} is this installation: there is nothing to take over")
    adopted = tuple(dict.fromkeys((*current.adopted, lost_id)))
    return await _write(store, Installation(current.id, adopted))


async def assign(stores: Stores, new_id: str) -> Installation:
    """Give this system the id of the installation that it continues, and return it.

    The former id of the system becomes an adopted one, so that its objects still belong to it.
    """
    _check(new_id)
    store = await stores.open(INSTALLATION)
    current = await known_installation(store)
    former = () if current is None else (current.id, *current.adopted)
    adopted = tuple(dict.fromkeys(adopted_id for adopted_id in former if adopted_id != new_id))
    return await _write(store, Installation(new_id, adopted))


def _check(installation_id: str) -> None:
    if not _ID.fullmatch(installation_id):
        raise UsageError(
            f"{installation_id!r} is no id of an installation: natsctl repair installation show "
            "prints one"
        )


async def _write(store: Store, changed: Installation) -> Installation:
    await rewrite(store, KEY, lambda _: msgspec.json.encode(changed))
    return changed


async def _read_or_create(store: Store) -> Installation:
    known = await known_installation(store)
    if known is not None:
        return known
    created = Installation(secrets.token_hex(ID_BYTES))
    try:
        await store.create(KEY, msgspec.json.encode(created))
    except ConflictError:
        return INSTALLATION.decode((await store.get(KEY)).value)
    return created


# ---- the first start of a controller with leader election or shares


class FirstRun(msgspec.Struct, frozen=True):
    """The time at which a process first ran a controller with a lease or shards (RFC 3339)."""

    at: str


FIRST_RUNS: KvKind[FirstRun] = kv(FirstRun, bucket="natsctl", history=1, replicas=None)


def first_run_of(name: str) -> str:
    """Return the key of a controller's `FirstRun`."""
    return f"lease.{name}"


async def is_first_run(stores: Stores, name: str) -> bool:
    """Return whether no process has ever run the controller with a record, and note that one does.

    Then a missing record was never there, so nobody needs to wait for it. Otherwise somebody may
    have deleted the bucket of leases, which its owners notice only at their next renewal. Raises
    `StoreError` if the bucket `natsctl` can't be read or written.
    """
    store = await stores.open(FIRST_RUNS.part(first_run_of(name)))
    record = FirstRun(datetime.now(UTC).isoformat(timespec="seconds"))
    try:
        await store.create(first_run_of(name), msgspec.json.encode(record))
    except ConflictError:
        return False
    except PermissionDeniedError as error:
        log.warning("cannot record the first start of the controller", error=error)
        return False
    return True
