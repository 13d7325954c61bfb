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

    def __init__(self) -> None:
        self.syncs: list[str] = []
        self.cleaned = False

    async def sync_handler(self, key: str) -> float | None:
        self.syncs.append(key)
        await asyncio.sleep(1)
        stored = self.things.get(key)
        if stored is not None:
            await self.copies.apply(key, thing(stored.spec.text))
        return None

    async def clean(self) -> None:
        self.cleaned = True


class Polling(Controller):
    """Requests another sync after an hour."""

    things = primary(THINGS)
    resync_s = 1e9

    def __init__(self) -> None:
        self.syncs = 0

    async def sync_handler(self, key: str) -> float | None:
        self.syncs += 1
        return 3600.0


class Waiting(Controller):
    """Waits a minute for another system, once."""

    things = primary(THINGS)

    def __init__(self) -> None:
        self.syncs = 0
        self.done = False

    async def sync_handler(self, key: str) -> float | None:
        self.syncs += 1
        if self.syncs == 1:
            raise RetryAfter(60)
        self.done = True
        return None


class Failing(Controller):
    """Fails a number of times."""

    things = primary(THINGS)

    def __init__(self, times: int) -> None:
        self.times = times
        self.syncs = 0

    async def sync_handler(self, key: str) -> float | None:
        self.syncs += 1
        if self.syncs <= self.times:
            raise OSError("the other system is unavailable")
        return None


class Unready(Controller):
    """Fails at the start."""

    things = primary(THINGS)

    async def sync_handler(self, key: str) -> float | None:
        return None

    async def start(self) -> None:
        raise ZeroDivisionError


async def test_run_until_idle_waits_for_every_sync_after_a_change() -> None:
    controller = Copier()
    async with running(controller) as harness:
        await controller.things.put("a", thing("hi"))
        await harness.run_until_idle()
        assert controller.copies.get("a") is not None
        assert controller.syncs == ["a"]


async def test_the_harness_runs_over_existing_stores() -> None:
    stores = MemoryStores()
    await stores.store(THINGS).create("a", value("hi"))
    async with running(Copier(), stores=stores) as harness:
        await harness.run_until_idle()
        assert harness.stores is stores
    assert stores.store(COPIES).keys() == ["a"]


async def test_a_key_that_waits_for_a_requested_sync_is_idle() -> None:
    controller = Polling()
    async with running(controller) as harness:
        await controller.things.put("a", thing("hi"))
        await harness.run_until_idle(limit_s=10)
        assert controller.syncs == 1
        await harness.run_for(2 * 3600)
        await harness.run_until_idle(limit_s=10)
        assert controller.syncs == 3


async def test_a_key_that_waits_after_retry_after_is_idle() -> None:
    controller = Waiting()
    async with running(controller) as harness:
        await controller.things.put("a", thing("hi"))
        await harness.run_until_idle(limit_s=10)
        assert not controller.done
        await harness.run_until(lambda: controller.done)
        assert 60 <= asyncio.get_running_loop().time() < 62


async def test_a_key_that_waits_for_a_retry_after_an_error_is_not_idle() -> None:
    controller = Failing(times=12)
    async with running(controller) as harness:
        await controller.things.put("a", thing("hi"))
        await harness.run_until_idle()
        assert controller.syncs == 13


async def test_a_controller_that_always_fails_is_never_idle() -> None:
    controller = Failing(times=1_000_000)
    async with running(controller) as harness:
        await controller.things.put("a", thing("hi"))
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


async def test_leaving_the_harness_stops_the_controller_and_closes_every_watch() -> None:
    controller = Copier()
    async with running(controller) as harness:
        stores = harness.stores
        assert stores.store(THINGS).watches == 1
    assert controller.cleaned
    assert stores.store(THINGS).watches == stores.store(COPIES).watches == 0


async def test_a_failed_start_is_raised() -> None:
    with pytest.raises(HandlerError, match=r"start\(\) failed: ZeroDivisionError"):
        async with running(Unready()):
            pytest.fail("the controller did not start")
