"""Knows whether a lease without a trace is free, or was lost together with its bucket.

A process that starts and finds no trace of a lease may be the first of all, and then it must not
wait. But the bucket of leases may just as well have been deleted, purged or made again while
another process leads, which notices that with its next renewal only. Two facts prove that nobody
leads: the controller was never run by several processes, of which the bucket `natsctl` keeps a
record; or nothing was written to the bucket of leases for longer than a lease lives.
"""

import logging
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from natsctl.core.coordination.lease import TAKE_OVER
from natsctl.errors import ConflictError, PermissionDeniedError
from natsctl.model.kinds import KvKind, kv
from natsctl.model.store import Stores

log = logging.getLogger(__name__)


class FirstRun(msgspec.Struct, frozen=True):
    """When several processes first ran a controller (RFC 3339)."""

    at: str


FIRST_RUNS: KvKind[FirstRun] = kv(FirstRun, bucket="natsctl", history=1, replicas=None)


def first_run_of(name: str) -> str:
    """Return the key of the record of a controller."""
    return f"lease.{name}"


class Quiet(Protocol):
    """A store that knows when it was last written; a `LeaseStore` of NATS."""

    async def quiet_s(self) -> float:
        """Return for how many seconds nothing was written."""
        ...


class Vacancy:
    """Answers for each controller whether a lease without a trace is free.

    Args:
        stores: where the bucket `natsctl` is.
        leases: the bucket of leases.
        ttl_s: how long a lease lives.
    """

    def __init__(self, stores: Stores, leases: Quiet, *, ttl_s: float) -> None:
        self._stores = stores
        self._leases = leases
        self._ttl_s = ttl_s

    async def of(self, name: str) -> bool:
        """Return whether no process can hold that lease; remembers that the controller was run.

        Raises `StoreError` if that cannot be found out.
        """
        store = await self._stores.open(FIRST_RUNS.part(first_run_of(name)))
        record = FirstRun(datetime.now(UTC).isoformat(timespec="seconds"))
        try:
            await store.create(first_run_of(name), msgspec.json.encode(record))
        except ConflictError:
            return await self._leases.quiet_s() > TAKE_OVER * self._ttl_s
        except PermissionDeniedError as error:
            log.warning("%s: its first start cannot be remembered: %s", name, error)
            return await self._leases.quiet_s() > TAKE_OVER * self._ttl_s
        return True
