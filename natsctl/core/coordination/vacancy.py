"""Decides whether a lease without a trace is free, or was lost together with its bucket.

A process that starts and finds no trace of a lease may be the first one, and then it must not wait.
But somebody may have deleted, purged or recreated the bucket of leases while another process leads.
The leader notices that only at its next renewal. Either of two facts proves that no process leads:

- The bucket `natsctl` has no `FirstRun` of the controller, so no process has run it with a lease.
- The bucket of leases was not written for longer than the time to live of a lease.
"""

from datetime import UTC, datetime
from typing import Protocol

import msgspec

from natsctl.core.coordination.own_record import TAKE_OVER
from natsctl.errors import ConflictError, PermissionDeniedError
from natsctl.model.kinds import KvKind, kv
from natsctl.model.store import Stores
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)


class FirstRun(msgspec.Struct, frozen=True):
    """The time at which a process first ran a controller with a lease or shards (RFC 3339)."""

    at: str


FIRST_RUNS: KvKind[FirstRun] = kv(FirstRun, bucket="natsctl", history=1, replicas=None)


def first_run_of(name: str) -> str:
    """Return the key of a controller's `FirstRun`."""
    return f"lease.{name}"


class Quiet(Protocol):
    """A store that knows when it was last written, such as the `LeaseStore` of NATS."""

    async def quiet_s(self) -> float:
        """Return the seconds since the last write."""
        ...


class Vacancy(msgspec.Struct, frozen=True):
    """Decides for each controller whether a lease without a trace is free."""

    stores: Stores  # the system with the bucket `natsctl`
    leases: Quiet
    ttl_s: float  # the time to live of a lease

    async def is_vacant(self, name: str) -> bool:
        """Return whether no process can hold the lease, and record that the controller was run.

        Raises `StoreError` if a bucket cannot be read or written.
        """
        store = await self.stores.open(FIRST_RUNS.part(first_run_of(name)))
        record = FirstRun(datetime.now(UTC).isoformat(timespec="seconds"))
        try:
            await store.create(first_run_of(name), msgspec.json.encode(record))
        except ConflictError:
            pass
        except PermissionDeniedError as error:
            log.warning("cannot record the first start of the controller", error=error)
        else:
            return True
        return await self.leases.quiet_s() > TAKE_OVER * self.ttl_s
