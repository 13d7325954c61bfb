"""The controllers of one process start in order, stop in reverse, stand and fall together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from natsctl import Controller, ControllerRuntime, Object, Stop, kv, primary
from natsctl.daemon.operator import Operator
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.errors import HandlerError, NatsctlError, UsageError
from natsctl.model.kinds import Kind
from natsctl.model.store import ManifestStores, Stores
from natsctl.testing.memory import MemoryStores
from natsctl.watchers import InformerController
from tests.support.controllers.recording_watcher import SITES, Notes, site


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
        return None

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
        return None


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
        with pytest.raises(HandlerError, match=r"start\(\) failed: RuntimeError: cannot start"):
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
        settings = ControllerSettings(stop_timeout_s=stop_timeout_s)
        operator = Operator([Slow(told)], nats=stores, settings=settings)
        async with running(operator):
            await asyncio.sleep(1)
            stopped_at = asyncio.get_running_loop().time()
        assert ("slow is done" in told) is finished
        assert asyncio.get_running_loop().time() - stopped_at <= stop_timeout_s
        assert told[-1] == "slow ends"


async def test_settings_override_what_controllers_say() -> None:
    controller = First([])
    Operator([controller], nats=MemoryStores(), settings=ControllerSettings(workers=9, resync_s=5))
    assert (controller.workers, controller.resync_s) == (9, 5)
    assert (First.workers, First.resync_s) == (4, 600)


async def test_none_and_twice_the_same_are_refused() -> None:
    with pytest.raises(UsageError, match="no controller"):
        await Operator([], nats=MemoryStores()).run()
    with pytest.raises(UsageError, match="two controllers are named first"):
        Operator([First([]), First([])], nats=MemoryStores())


@pytest.mark.parametrize("name", ["my shops", "shops.eu", "küche", "a>", "a\nb"])
async def test_a_name_that_cannot_be_part_of_a_subject_is_refused(name: str) -> None:
    controller = First([])
    controller.name = name
    with pytest.raises(UsageError, match=r"cannot name a controller.* set a `name` of ASCII"):
        Operator([controller], nats=MemoryStores())


class Guest:
    """Runs by itself, as watchers and others do."""

    def __init__(self, told: list[str], error: Exception | None = None) -> None:
        self.name = "guest"
        self.workers = 1
        self.kinds: list[Kind[Any]] = []
        self.synced = asyncio.Event()
        self.nats: Stores | None = None
        self.kube: ManifestStores | None = None
        self._told = told
        self._error = error
        self._stopping = asyncio.Event()

    def use(self, *, nats: Stores | None = None, kube: ManifestStores | None = None) -> None:
        self.nats, self.kube = nats, kube

    async def run(self) -> None:
        self._told.append("guest starts")
        self.synced.set()
        if self._error is not None:
            raise self._error
        await self._stopping.wait()
        await asyncio.sleep(5)
        self._told.append("guest ends")

    def stop(self) -> None:
        self._stopping.set()


async def test_others_than_controllers_are_run_and_waited_for_and_told_where_things_are() -> None:
    told: list[str] = []
    stores, guest = MemoryStores(), Guest(told)
    operator = Operator(
        [First(told)], nats=stores, settings=ControllerSettings(workers=9, resync_s=5)
    )
    operator.add_controller(guest)
    async with running(operator) as task:
        assert (guest.nats, guest.kube, guest.workers) == (stores, None, 9)
        assert not hasattr(guest, "resync_s")
    assert told == ["first starts", "guest starts", "guest ends", "first ends"]
    assert task.result() is None


async def test_what_ends_one_of_them_stops_all_and_is_raised() -> None:
    told: list[str] = []
    operator = Operator([First(told), Guest(told, ValueError("for good"))], nats=MemoryStores())
    with pytest.raises(ValueError, match="for good"):
        await operator.run()
    assert told == ["first starts", "guest starts", "first ends"]


async def test_what_is_added_while_it_runs_is_not_run() -> None:
    told: list[str] = []
    operator = Operator([First(told)], nats=MemoryStores())
    async with running(operator):
        operator.add_controller(Guest(told))
        await asyncio.sleep(10)
    assert told == ["first starts", "first ends"]


async def test_one_that_knows_its_stores_keeps_them_where_none_are_given() -> None:
    guest = Guest([])
    guest.nats = stores = MemoryStores()
    operator = Operator([guest])
    async with running(operator):
        assert guest.nats is stores
    with pytest.raises(UsageError, match="first has its primary in NATS"):
        Operator([First([])])


async def test_a_runtime_that_was_made_before_is_run_as_it_is() -> None:
    told: list[str] = []
    runtime = ControllerRuntime(First(told), nats=MemoryStores())
    async with running(Operator([runtime])) as task:
        assert told == ["first starts"]
    assert task.result() is None


async def test_watchers_are_run_as_controllers_are() -> None:
    stores, notes = MemoryStores(), Notes()
    await stores.store(SITES).create("athens", site("one"))
    watching = InformerController(name="watching")
    watching.add_informer(SITES)
    watching.add_watcher(notes, SITES)
    async with running(Operator([watching, First([])], nats=stores)) as task:
        await asyncio.sleep(1)
        assert notes.told == ["add athens one"]
    assert task.result() is None
