"""Identifies the installation: the NATS system whose primaries an object in a cluster belongs to.

Two NATS systems may run the same controller over one cluster, and then have owners of the same
kind and key. The id of the installation distinguishes them. It is random, kept in the bucket
`natsctl`, and made once. Secondaries in NATS do not carry it: they are in the same system as their
owner.
"""

import asyncio
import secrets

import msgspec

from natsctl.core.write import read
from natsctl.errors import ConflictError, StoreTimeoutError
from natsctl.model.kinds import KvKind, kv
from natsctl.model.store import Store, Stores

KEY = "installation"
ID_BYTES = 8
DEADLINE_S = 10.0


class Installation(msgspec.Struct, frozen=True):
    """This system's id, and the ids of lost installations whose objects it has taken over."""

    id: str
    adopted: tuple[str, ...] = ()

    def includes(self, installation_id: str) -> bool:
        """Return whether objects that carry this id belong to this installation."""
        return installation_id == self.id or installation_id in self.adopted


INSTALLATION: KvKind[Installation] = kv(
    Installation, bucket="natsctl", keys=KEY, history=1, replicas=None
)


async def known_installation(store: Store) -> Installation | None:
    """Return the installation that the store of `INSTALLATION` holds, None before it is made."""
    stored = await read(store, KEY)
    return None if stored is None else INSTALLATION.decode(stored.value)


async def installation(stores: Stores, *, deadline_s: float = DEADLINE_S) -> Installation:
    """Return the installation of this system; the first call makes its id.

    Processes that race agree on one id. Raises a `StoreError` if the record cannot be read or
    made, and `InvalidObjectError` if it does not decode.
    """
    try:
        async with asyncio.timeout(deadline_s):
            return await _read_or_make(await stores.open(INSTALLATION))
    except TimeoutError as error:
        raise StoreTimeoutError(
            f"the installation's id was not read from the bucket {INSTALLATION.bucket} "
            f"within {deadline_s:g} s"
        ) from error


async def _read_or_make(store: Store) -> Installation:
    known = await known_installation(store)
    if known is not None:
        return known
    made = Installation(secrets.token_hex(ID_BYTES))
    try:
        await store.create(KEY, msgspec.json.encode(made))
    except ConflictError:
        return INSTALLATION.decode((await store.get(KEY)).value)
    return made
