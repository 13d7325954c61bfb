"""Old and new members of a group run side by side, and no key waits for the end of the roll."""

import asyncio
import random
from collections import defaultdict
from itertools import pairwise

import msgspec

from natsctl import Controller, Object, kv, primary
from natsctl.testing import MemoryStores
from tests.support.controllers.sharing_group import TTL_S, SharingMember
from tests.support.eventually import eventually

AGAIN_S = 1.0
WITHIN_S = 4.0  # the longest time without a sync of a key
KEYS = [f"shop{number}" for number in range(60)]


class OldSpec(msgspec.Struct, frozen=True):
    image: str


class NewSpec(msgspec.Struct, frozen=True):
    images: tuple[str, ...]


class Old:
    """The first version of the program."""

    class Shop(Object, frozen=True):
        spec: OldSpec


class New:
    """The second version of the program."""

    class Shop(Object, frozen=True):
        spec: NewSpec


def upgrade(old: Old.Shop) -> New.Shop:
    return New.Shop(spec=NewSpec((old.spec.image,)))


SYNCS: dict[str, list[float]] = defaultdict(list)


class OldShops(Controller):
    """Syncs each shop again and again, and counts its syncs in the shop's status."""

    name = "shops"
    workers = 20
    shops = primary(kv(Old.Shop, bucket="shops"))

    async def sync_handler(self, key: str) -> float | None:
        if self.shops.get(key) is None:
            return None
        SYNCS[key].append(asyncio.get_running_loop().time())
        await self.shops.update_status(key, {"syncs": len(SYNCS[key])})
        return AGAIN_S


class NewShops(OldShops):
    """The same with a newer type: each write of a status stores the newer form."""

    name, version = "shops", "2.0"
    shops = primary(kv(New.Shop, bucket="shops", older=[(Old.Shop, upgrade)]))  # type: ignore[assignment]


def works(member: SharingMember[Controller]) -> bool:
    return member.operator.participations["shops"].state().works


async def shops() -> MemoryStores:
    """Return stores that have the shops, of which none is synced yet."""
    SYNCS.clear()
    stores = MemoryStores()
    for key in KEYS:
        await stores.store(OldShops.shops.kind).create(key, b'{"spec": {"image": "nginx"}}')
    return stores


async def test_every_object_is_synced_within_seconds_while_three_members_are_replaced() -> None:
    stores, clock = await shops(), asyncio.get_running_loop().time
    members = [SharingMember[Controller](stores, OldShops()) for _ in range(3)]
    await eventually(lambda: all(works(member) for member in members), within_s=5 * TTL_S)
    await eventually(lambda: len(SYNCS) == len(KEYS))
    begun = clock()
    for number in (0, 0, 1, 2):  # the first new one restarts: its objects come to old members
        await members[number].stop()
        members[number] = SharingMember[Controller](stores, NewShops())
        await eventually(lambda: works(members[number]), within_s=5 * TTL_S)  # noqa: B023
        await asyncio.sleep(random.uniform(2.0, 6.0))
    check_gaps(begun, clock())
    for member in members:
        await member.stop()


async def test_an_old_member_gives_back_the_keys_that_only_new_ones_can_read() -> None:
    stores, clock = await shops(), asyncio.get_running_loop().time
    new = SharingMember[Controller](stores, NewShops())
    await eventually(lambda: len(SYNCS) == len(KEYS))
    old, begun = SharingMember[Controller](stores, OldShops()), clock()
    await eventually(lambda: works(old), within_s=TTL_S)
    await asyncio.sleep(2 * TTL_S)
    check_gaps(begun, clock())
    await old.stop()
    await new.stop()


def check_gaps(begun: float, ended: float) -> None:
    """Check that no key waited for long between these times."""
    for key in KEYS:
        times = [begun, *(at for at in SYNCS[key] if begun < at < ended), ended]
        gaps = [after - before for before, after in pairwise(times)]
        assert max(gaps) < WITHIN_S, key
