"""The test harness runs a controller over memory stores in virtual time."""

import asyncio

import pytest

import natsctl
from natsctl import Controller, HandlerError, RetryAfter, primary, secondary
from natsctl.testing import MemoryStores, running
from tests.support.stores.sample_objects import THINGS, Thing, thing, value

COPIES = natsctl.kv(Thing, bucket="copies")


class Copier(Controller):
    """Applies a copy of each thing; a sync takes a second."""

    things = primary(THINGS)
    copies = secondary(COPIES)
    cleaned = False

    async def sync_handler(self, key: str) -> float | None:
        await asyncio.sleep(1)
        stored = self.things.get(key)
        if stored is not None:
            await self.copies.apply(key, thing(stored.spec.text))
        return None

    async def clean(self) -> None:
        self.cleaned = True


class Counting(Controller):
    """Counts its syncs, fails a number of times, and then asks for another sync."""

    things = primary(THINGS)
    resync_s = 1e9

    def __init__(self, *, fails: int = 0, error: Exception | None = None) -> None:
        self.fails = fails
        self.error = error or OSError("the other system is unavailable")
        self.syncs = 0

    async def sync_handler(self, key: str) -> float | None:
        self.syncs += 1
        if self.syncs <= self.fails:
            raise self.error.with_traceback(None)
        return 3600.0


class Unready(Controller):
    """Fails at the start."""

    things = primary(THINGS)

    async def sync_handler(self, key: str) -> float | None:
        return None

    async def start(self) -> None:
        raise ZeroDivisionError


async def test_run_until_idle_waits_for_every_sync_over_existing_stores() -> None:
    stores, controller = MemoryStores(), Copier()
    await stores.store(THINGS).create("a", value("hi"))
    async with running(controller, stores=stores) as harness:
        assert harness.stores is stores
        await controller.things.put("b", thing("hi"))
        await harness.run_until_idle()
        assert stores.store(COPIES).keys() == ["a", "b"]
        assert stores.store(THINGS).watches == 1
    assert controller.cleaned
    assert stores.store(THINGS).watches == stores.store(COPIES).watches == 0


async def test_a_key_that_waits_for_a_requested_sync_is_idle() -> None:
    controller = Counting()
    async with running(controller) as harness:
        await controller.things.put("a", thing("hi"))
        await harness.run_until_idle(limit_s=10)
        assert controller.syncs == 1
        await harness.run_for(2 * 3600)
        await harness.run_until_idle(limit_s=10)
        assert controller.syncs == 3


async def test_a_key_that_waits_after_retry_after_is_idle() -> None:
    controller = Counting(fails=1, error=RetryAfter(60))
    async with running(controller) as harness:
        await controller.things.put("a", thing("hi"))
        await harness.run_until_idle(limit_s=10)
        assert controller.syncs == 1
        await harness.run_until(lambda: controller.syncs == 2)
        assert 60 <= asyncio.get_running_loop().time() < 62


async def test_a_key_that_waits_for_a_retry_after_an_error_is_not_idle() -> None:
    controller = Counting(fails=12)
    async with running(controller) as harness:
        await controller.things.put("a", thing("hi"))
        await harness.run_until_idle()
        assert controller.syncs == 13
        controller.fails = 1_000_000
        await controller.things.put("b", thing("hi"))
        with pytest.raises(TimeoutError, match="not idle after 60 s"):
            await harness.run_until_idle(limit_s=60)


async def test_run_until_names_the_condition_that_stays_false() -> None:
    def no_copies() -> bool:
        return False

    async with running(Copier()) as harness:
        with pytest.raises(TimeoutError, match=r"still false after 60 s: .*no_copies"):
            await harness.run_until(no_copies, limit_s=60)


async def test_run_for_raises_if_the_controller_stopped() -> None:
    async with running(Copier()) as harness:
        harness.runtime.stop()
        with pytest.raises(RuntimeError, match="the controller was stopped"):
            await harness.run_for(60)


async def test_a_failed_start_is_raised() -> None:
    with pytest.raises(HandlerError, match=r"start\(\) failed: ZeroDivisionError"):
        async with running(Unready()):
            pytest.fail("the controller did not start")
