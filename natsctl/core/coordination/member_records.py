"""Reads the records of the members that share a controller's keys."""

from typing import Protocol

import msgspec

from natsctl.core.coordination.membership import Membership
from natsctl.errors import DECODE_ERRORS
from natsctl.model.store import Stored


class LivingRecords(Protocol):
    """A store of records that expire; the store of leases in NATS is one."""

    async def living(self, pattern: str) -> list[Stored]:
        """Return the records whose keys match the pattern."""
        ...


def records_of(name: str) -> str:
    """Return the keys of the records of a controller's group, as a pattern."""
    return f"{name}.shards.*"


async def members_of(leases: LivingRecords, name: str) -> dict[str, Membership]:
    """Return the records of the members that share a controller's keys, by their keys."""
    records = {at.key: _record(at.value) for at in await leases.living(records_of(name))}
    return {key: at for key, at in records.items() if at is not None and not at.left}


def _record(value: bytes) -> Membership | None:
    try:
        record = msgspec.json.decode(value, type=Membership)
    except DECODE_ERRORS:
        return None
    return record if record.possible else None
