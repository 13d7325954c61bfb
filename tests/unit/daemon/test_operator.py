"""The controllers of one process start in order, stop in reverse, stand and fall together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from natsctl import Controller, Object, Stop, kv, primary
from natsctl.daemon.operator import Operator
from natsctl.daemon.settings import Settings
from natsctl.errors import NatsctlError, UsageError
from natsctl.testing.memory import MemoryStores


class App(Object, frozen=True):
    pass


class First(Controller):
    apps = primary(kv(App, bucket="first"))

    def __init__(self, told: list[str]) -> None:
        self.told = told

    async def start(self) -> None:
        await asyncio.sleep(1)
        self.told.append(f"{self.name} starts")

    async def sync_handler(self, key: str) -> float | None:
        self.told.append(f"{self.name} syncs {key}")

    async def clean(self) -> None:
        self.told.append(f"{self.name} ends")


class Second(First):
    apps = primary(kv(App, bucket="second"))


class Failing(First):
    apps = primary(kv(App, bucket="failing"))

    async def start(self) -> None:
        raise RuntimeError("cannot start")


class GivingUp(First):
    apps = primary(kv(App, bucket="giving-up"))
    retry = staticmethod(lambda error, failures: Stop())

    async def sync_handler(self, key: str) -> float | None:
        raise ValueError(key)


class Slow(First):
    apps = primary(kv(App, bucket="slow"))

    async def sync_handler(self, key: str) -> float | None:
        self.told.append("slow begins")
        await asyncio.sleep(50)
        self.told.append("slow is done")


@asynccontextmanager
async def running(operator: Operator) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(operator.run())
    synced = asyncio.create_task(operator.synced.wait())
    await asyncio.wait((task, synced), return_when=asyncio.FIRST_COMPLETED)
    synced.cancel()
    yield task
    operator.stop()
    await asyncio.wait((task,))


async def test_each_starts_after_the_one_before_and_stops_before_it() -> None:
    told: list[str] = []
    operator = Operator([First(told), Second(told)], nats=MemoryStores())
    async with running(operator) as task:
        assert told == ["first starts", "second starts"]
        assert asyncio.get_running_loop().time() >= 2
    assert told[2:] == ["second ends", "first ends"]
    assert task.result() is None


async def test_a_cancelled_operator_stops_all_in_the_same_order() -> None:
    told: list[str] = []
    async with running(Operator([First(told), Second(told)], nats=MemoryStores())) as task:
        task.cancel()
        await asyncio.wait((task,))
    assert told[2:] == ["second ends", "first ends"]
    assert task.cancelled()


async def test_one_that_cannot_start_stops_those_before_and_starts_none_after() -> None:
    told: list[str] = []
    operator = Operator([First(told), Failing(told), Second(told)], nats=MemoryStores())
    async with running(operator) as task:
        with pytest.raises(RuntimeError, match="cannot start"):
            await task
    assert told == ["first starts", "failing ends", "first ends"]


async def test_one_that_gives_up_stops_all() -> None:
    told: list[str] = []
    stores = MemoryStores()
    await stores.store(GivingUp.apps.kind).create("a", b"{}")
    async with running(Operator([First(told), GivingUp(told)], nats=stores)) as task:
        with pytest.raises(NatsctlError, match="givingup ended"):
            await task
    assert told[-1] == "first ends"


async def test_a_stop_waits_for_what_is_under_way_but_not_for_ever() -> None:
    for stop_timeout_s, finished in ((60, True), (10, False)):
        told: list[str] = []
        stores = MemoryStores()
        await stores.store(Slow.apps.kind).create("a", b"{}")
        settings = Settings(stop_timeout_s=stop_timeout_s)
        operator = Operator([Slow(told)], nats=stores, settings=settings)
        async with running(operator):
            await asyncio.sleep(1)
            stopped_at = asyncio.get_running_loop().time()
        assert ("slow is done" in told) is finished
        assert asyncio.get_running_loop().time() - stopped_at <= stop_timeout_s
        assert told[-1] == "slow ends"


async def test_settings_override_what_controllers_say() -> None:
    controller = First([])
    Operator([controller], nats=MemoryStores(), settings=Settings(workers=9, resync_s=5))
    assert (controller.workers, controller.resync_s) == (9, 5)
    assert (First.workers, First.resync_s) == (4, 600)


def test_none_and_twice_the_same_are_refused() -> None:
    with pytest.raises(UsageError, match="no controller"):
        Operator([], nats=MemoryStores())
    with pytest.raises(UsageError, match="two controllers are named first"):
        Operator([First([]), First([])], nats=MemoryStores())
