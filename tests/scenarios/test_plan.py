"""A plan runs the real handler, shows its writes, and stores nothing."""

from typing import Any

import msgspec
import pytest

from natsctl import (
    Controller,
    ExistsError,
    Metadata,
    Object,
    Plan,
    PlanningError,
    kv,
    plan,
    planning,
    primary,
    secondary,
)
from natsctl.testing import MemoryStores, running
from tests.support.controllers.app_controller import (
    APPS,
    PARTS,
    App,
    AppClient,
    Apps,
    AppSpec,
    Part,
    PartSpec,
    edit,
)


def part(text: str) -> Part:
    return Part(spec=PartSpec(text))


class Slow(Controller):
    """A controller that calls a blocking function for each app."""

    apps = primary(APPS)
    safe = False

    async def sync_handler(self, key: str) -> float | None:
        assert planning()
        await self.blocking(list, safe=self.safe)
        return 30.0


class Shared(Controller):
    """A controller whose keys all write the same part."""

    apps = primary(APPS)
    parts = secondary(PARTS)
    adopt = False

    async def sync_handler(self, key: str) -> float | None:
        app = self.apps.get(key)
        if app is not None:
            await self.parts.apply("shared", part(key), adopt=self.adopt)
        return None


class Reader(Controller):
    """A controller that reads its own writes."""

    apps = primary(APPS)
    parts = secondary(PARTS, indexes={"text": lambda part: [part.spec.text]})

    async def sync_handler(self, key: str) -> float | None:
        await self.parts.apply(f"{key}.a", part("hi"))
        assert self.parts.get(f"{key}.a") == self.parts.owned()[f"{key}.a"]
        assert list(self.parts.by_index("text", "hi")) == [f"{key}.a"]
        return None


@pytest.fixture
def client() -> AppClient:
    return AppClient(MemoryStores())


async def plan_of(client: AppClient, controller: Controller | None = None, *keys: str) -> Plan:
    return await plan(controller or Apps(), nats=client.stores, keys=keys)


def signs(planned: Plan) -> list[tuple[str, str, str]]:
    """Return the key of each action with its type and its object."""
    return [
        (key, action.action, action.key)
        for key, key_plan in planned.keys.items()
        for action in key_plan.actions
    ]


async def converge(client: AppClient) -> None:
    async with running(Apps(), stores=client.stores) as harness:
        await harness.run_until_idle()


async def test_a_plan_has_the_writes_of_the_handler_and_stores_none(client: AppClient) -> None:
    await client.app("shop", parts=("a", "b"))
    before = client.writes
    planned = await plan_of(client)
    assert signs(planned) == [
        ("shop", "create", "shop.a"),
        ("shop", "create", "shop.b"),
        ("shop", "status", "shop"),
    ]
    assert (client.writes, client.part_keys) == (before, [])


async def test_a_plan_drops_what_another_process_has_done_meanwhile(client: AppClient) -> None:
    class Raced(Apps):
        async def sync_handler(self, key: str) -> float | None:
            await super().sync_handler(key)
            if self.syncs == [key]:
                await client.parts.create("shop.main", done.value)
            return None

    await client.app("shop")
    await converge(client)
    done = await client.parts.get("shop.main")
    await client.parts.delete("shop.main")
    planned = await plan_of(client, Raced())
    assert (planned.keys, planned.summary.unchanged) == ({}, 1)


class OldSpec(msgspec.Struct, frozen=True):
    text: str


class OldSite(Object, frozen=True, kw_only=True):
    spec: OldSpec


class OldSites(Controller):
    """A version of a controller that can't read what a later one has migrated."""

    sites = primary(kv(OldSite, bucket="apps"))
    parts = secondary(PARTS)

    async def sync_handler(self, key: str) -> float | None:
        site = self.sites.get(key)
        if site is not None:
            await self.parts.apply(key, part(site.spec.text))
        return None


async def test_the_plan_of_a_rollback_settles_with_many_primaries_that_it_can_not_read(
    client: AppClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("natsctl.daemon.plan.SYNCS_MAX", 10)
    count = 150  # more syncs than a plan allows that counts valid primaries only
    owner = {"natsctl.io/owner-kind": "OldSite.apps"}
    for number in range(count):
        key = f"a{number}"
        await client.stores.store(APPS).create(key, b'{"spec": {"texts": []}}')
        names = {**owner, "natsctl.io/owner-key": key}
        owned = Part(spec=PartSpec("hi"), metadata=Metadata(labels=names, annotations=names))
        await client.stores.store(PARTS).create(key, PARTS.encode(None, owned))
    planned = await plan_of(client, OldSites())
    assert (planned.summary.failed, signs(planned)) == (count, [])
    assert all("missing required field" in key_plan.error for key_plan in planned.keys.values())


class Endless(Controller):
    """A controller whose primaries make primaries without an end."""

    apps = primary(APPS)

    async def sync_handler(self, key: str) -> float | None:
        await self.apps.create(f"a{int(key[1:]) + 1}", App(spec=AppSpec()))
        return None


@pytest.mark.long  # ten thousand syncs
async def test_a_plan_gives_up_if_primaries_make_primaries_without_an_end(
    client: AppClient,
) -> None:
    await client.app("a0")
    planned = await plan_of(client, Endless())
    (failed,) = (key_plan.error for key_plan in planned.keys.values() if key_plan.error)
    assert failed.startswith("PlanningError: primaries make primaries: the plan follows 10")


async def test_the_plan_encodes_to_the_documented_json(client: AppClient) -> None:
    await client.app("shop", parts=("a",))
    await converge(client)
    await edit(client.parts, "shop.a", "spec", "text", to="bye")
    assert msgspec.json.decode(msgspec.json.encode(await plan_of(client))) == {
        "controller": "apps",
        "summary": {"create": 0, "update": 1, "delete": 0, "failed": 0, "unchanged": 0},
        "keys": {
            "shop": {
                "error": "",
                "after_s": None,
                "actions": [
                    {
                        "action": "update",
                        "kind": "Part.parts",
                        "key": "shop.a",
                        "diff": [{"path": "spec.text", "before": "bye", "after": "hi"}],
                    }
                ],
            }
        },
    }


async def test_a_deleted_primary_deletes_its_secondaries_with_the_reason(
    client: AppClient,
) -> None:
    await client.app("shop", parts=("a",))
    await converge(client)
    await client.apps.delete("shop")
    (key_plan,) = (await plan_of(client)).keys.values()
    reason = f"owner shop was deleted at revision {await client.apps.newest_revision()}"
    (action,) = key_plan.actions
    found = (action.action, action.kind, action.key, action.reason)
    assert found == ("delete", PARTS.name, "shop.a", reason)


async def test_a_paused_key_is_held_back_with_the_reason(client: AppClient) -> None:
    await client.app("shop", parts=("a",))
    pause = "by=ann reason=waits for a disk"
    await edit(client.apps, "shop", "metadata", "annotations", "natsctl.io/paused", to=pause)
    planned = await plan_of(client)
    (key_plan,) = planned.keys.values()
    assert (key_plan.held_back, key_plan.actions) == ("paused by ann: waits for a disk", ())
    assert planned.summary.held_back == 1


async def test_a_blocking_call_fails_unless_it_is_safe(client: AppClient) -> None:
    await client.app("shop")
    refused = (await plan_of(client, Slow())).keys["shop"]
    assert refused.error.startswith(PlanningError.__name__)
    safe = Slow()
    safe.safe = True
    key_plan = (await plan_of(client, safe)).keys["shop"]
    assert (key_plan.error, key_plan.after_s) == ("", 30.0)


@pytest.mark.parametrize(
    ("adopt", "text"), [(False, ExistsError.__name__), (True, "back and forth")]
)
async def test_one_of_two_keys_that_write_one_secondary_fails(
    client: AppClient, *, adopt: bool, text: str
) -> None:
    await client.app("a")
    await client.app("b")
    fighting = Shared()
    fighting.adopt = adopt
    planned = await plan_of(client, fighting)
    (error,) = (key_plan.error for key_plan in planned.keys.values() if key_plan.error)
    assert text in error


async def test_a_handler_sees_its_own_planned_writes(client: AppClient) -> None:
    await client.app("shop")
    planned = await plan_of(client, Reader())
    assert planned.keys["shop"].error == ""


async def test_orphans_that_garbage_collection_keeps_are_listed_with_the_reason(
    client: AppClient,
) -> None:
    await client.app("shop", parts=("a",))
    await converge(client)
    client.apps.recreate()
    planned = await plan_of(client)
    assert planned.garbage is not msgspec.UNSET
    assert [orphan.key for orphan in planned.garbage.orphans] == ["shop.a"]
    async with running(Apps(), stores=client.stores) as harness:
        await harness.run_until_idle()
        assert planned.garbage.refused == (await harness.runtime.garbage_plan()).refused != ""
    assert (signs(planned), client.part_keys) == ([], ["shop.a"])


class Door(Object, frozen=True, kw_only=True):
    spec: dict[str, Any]


DOORS, LOCKS = kv(Door, bucket="doors"), kv(Door, bucket="locks")


class Doors(Controller):
    """Copies what a door says to its lock."""

    doors = primary(DOORS)
    locks = secondary(LOCKS)

    async def sync_handler(self, key: str) -> float | None:
        door = self.doors.get(key)
        if door is not None:
            await self.locks.apply(key, door)
        return None


async def test_a_plan_shows_that_a_secret_changes_and_not_the_secret() -> None:
    stores = MemoryStores()
    doors = stores.store(DOORS)
    spec = {"password": "swordfish", "codes": [{"token": "seven-up"}], "at": "front", "n": 1}
    front = await doors.create("front", msgspec.json.encode({"spec": spec}))
    created = await plan(Doors(), nats=stores)
    async with running(Doors(), stores=stores) as harness:
        await harness.run_until_idle()
    spec |= {"password": "tunafish", "at": "the tunafish shop", "n": 2}
    await doors.update("front", msgspec.json.encode({"spec": spec}), revision=front.revision)
    changed = await plan(Doors(), nats=stores)
    for secret in ("swordfish", "tunafish", "seven-up"):
        assert secret not in f"{created} {changed}"
    (action,) = changed.keys["front"].actions
    assert {diff.path: (diff.before, diff.after) for diff in action.diff} == {
        "spec.password": ("*** (before)", "*** (after)"),
        "spec.at": ("front", "the *** shop"),
        "spec.n": (1, 2),
    }
