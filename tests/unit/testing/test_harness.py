"""The harness runs a controller in memory until there is nothing left to do."""

import asyncio

import pytest

import natsctl
from natsctl import Controller, HandlerError, primary, secondary
from natsctl.testing.harness import running
from natsctl.testing.memory import MemoryStores
from tests.support.stores.sample_objects import THINGS, Thing, thing, value

COPIES = natsctl.kv(Thing, bucket="copies")


class Copier(Controller):
    """Makes a copy of each thing, in a second."""

    things = primary(THINGS)
    copies = secondary(COPIES)

    def __init__(self) -> None:
        self.syncs: list[str] = []
        self.cleaned = False

    async def sync_handler(self, key: str) -> float | None:
        self.syncs.append(key)
        await asyncio.sleep(1)
        found = self.things.get(key)
        if found is not None:
            await self.copies.apply(key, thing(found.spec.text))
        return None

    async def clean(self) -> None:
        self.cleaned = True


class Restless(Controller):
    """Comes back once an hour, for ever."""

    things = primary(THINGS)

    async def sync_handler(self, key: str) -> float | None:
        return 3600.0


class Unready(Controller):
    """Fails at the start."""

    things = primary(THINGS)

    async def sync_handler(self, key: str) -> float | None:
        return None

    async def start(self) -> None:
        raise ZeroDivisionError


async def test_idle_is_when_everything_that_follows_a_change_is_done() -> None:
    controller = Copier()
    async with running(controller) as harness:
        await controller.things.put("a", thing("hi"))
        await harness.run_until_idle()
        assert controller.copies.get("a") is not None
        assert controller.syncs == ["a"]


async def test_idle_takes_no_time_where_there_is_nothing_to_do() -> None:
    async with running(Copier()) as harness:
        before = asyncio.get_running_loop().time()
        await harness.run_until_idle()
        assert asyncio.get_running_loop().time() - before < 1


async def test_it_runs_over_stores_that_are_there_already() -> None:
    stores = MemoryStores()
    await stores.store(THINGS).create("a", value("hi"))
    async with running(Copier(), stores=stores) as harness:
        await harness.run_until_idle()
        assert harness.stores is stores
    assert stores.store(COPIES).keys() == ["a"]


async def test_a_controller_that_is_never_idle_is_given_up() -> None:
    controller = Restless()
    async with running(controller) as harness:
        await controller.things.put("a", thing("hi"))
        with pytest.raises(TimeoutError):
            await harness.run_until_idle(limit_s=7200)


async def test_leaving_stops_it_and_closes_every_watch() -> None:
    controller = Copier()
    async with running(controller) as harness:
        stores = harness.stores
        assert stores.store(THINGS).watches == 1
    assert controller.cleaned
    assert stores.store(THINGS).watches == stores.store(COPIES).watches == 0


async def test_a_controller_that_fails_at_its_start_fails_the_test() -> None:
    with pytest.raises(HandlerError, match=r"start\(\) failed: ZeroDivisionError"):
        async with running(Unready()):
            pytest.fail("it did not start")


async def test_what_fails_in_the_test_passes() -> None:
    with pytest.raises(KeyError):
        async with running(Copier()):
            raise KeyError
