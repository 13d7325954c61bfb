"""Identifies the installation: the NATS system whose primaries an object in a cluster belongs to.

Two NATS systems may run the same controller over one cluster, and then have owners of the same
kind and key. The id of the installation distinguishes them. It is random, kept in the bucket
`natsctl`, and made once. Secondaries in NATS do not carry it: they are in the same system as their
owner.
"""

import asyncio
import re
import secrets

import msgspec

from natsctl.core.objects.compare_and_set import read, rewrite
from natsctl.errors import ConflictError, StoreTimeoutError, UsageError
from natsctl.model.kinds import KvKind, kv
from natsctl.model.objects import Metadata
from natsctl.model.store import Store, Stores

KEY = "installation"
ID_BYTES = 8
DEADLINE_S = 10.0

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{3,62}")


class Installation(msgspec.Struct, frozen=True):
    """This system's id, and the ids of lost installations whose objects it has taken over."""

    id: str
    adopted: tuple[str, ...] = ()

    def includes(self, installation_id: str) -> bool:
        """Return whether objects that carry this id belong to this installation."""
        return installation_id == self.id or installation_id in self.adopted


class InstallationAnnotation(msgspec.Struct, frozen=True):
    """Reads and writes the annotation that assigns an object in a cluster to an installation."""

    annotation: str
    installation: Installation

    def on(self, metadata: Metadata) -> str:
        """Return the installation that the object carries; empty if it carries none."""
        return metadata.annotations.get(self.annotation, "")

    def foreign(self, metadata: Metadata) -> str:
        """Return the other installation that the object belongs to; empty if there is none."""
        found = self.on(metadata)
        return "" if not found or self.installation.includes(found) else found

    @property
    def annotations(self) -> dict[str, str]:
        """The annotation of an object of this installation."""
        return {self.annotation: self.installation.id}


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


async def adopt(stores: Stores, lost_id: str) -> Installation:
    """Take over the objects of a lost installation, and return this one.

    Raises `UsageError` if *lost_id* is no id, or this installation's own.
    """
    _check(lost_id)
    store = await stores.open(INSTALLATION)
    here = await _read_or_make(store)
    if lost_id == here.id:
        raise UsageError(f"{lost_id} is this installation: there is nothing to take over")
    adopted = (*here.adopted, lost_id) if lost_id not in here.adopted else here.adopted
    return await _write(store, Installation(here.id, adopted))


async def assign(stores: Stores, new_id: str) -> Installation:
    """Give this system the id of the installation that it continues, and return it.

    The id that the system had before counts as adopted, so that its objects stay its own.
    """
    _check(new_id)
    store = await stores.open(INSTALLATION)
    here = await known_installation(store)
    former = () if here is None else (here.id, *here.adopted)
    adopted = tuple(dict.fromkeys(each for each in former if each != new_id))
    return await _write(store, Installation(new_id, adopted))


def _check(installation_id: str) -> None:
    if not _ID.fullmatch(installation_id):
        raise UsageError(
            f"{installation_id!r} is no id of an installation: natsctl installation show prints one"
        )


async def _write(store: Store, changed: Installation) -> Installation:
    await rewrite(store, KEY, lambda _: msgspec.json.encode(changed))
    return changed


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
