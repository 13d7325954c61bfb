"""An operator starts its controllers in order and stops all of them in reverse order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from natsctl import Controller, Kind, Object, Operator, Stop, kv, primary
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.errors import HandlerError, NatsctlError, UsageError
from natsctl.model.store import ManifestStores, Stores
from natsctl.testing import MemoryStores


class App(Object, frozen=True):
    pass


class First(Controller):
    apps = primary(kv(App, bucket="first"))

    def __init__(self, events: list[str]) -> None:
        self.events = events

    async def start(self) -> None:
        await asyncio.sleep(1)
        self.events.append(f"{self.name} starts")

    async def sync_handler(self, key: str) -> float | None:
        self.events.append(f"{self.name} syncs {key}")
        return None

    async def clean(self) -> None:
        self.events.append(f"{self.name} ends")


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
        self.events.append("slow begins")
        await asyncio.sleep(50)
        self.events.append("slow is done")
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


@pytest.mark.parametrize("cancelled", [False, True])
async def test_controllers_start_in_order_and_stop_in_reverse_order(*, cancelled: bool) -> None:
    events: list[str] = []
    operator = Operator([First(events), Second(events)], nats=MemoryStores())
    async with running(operator) as task:
        assert events == ["first starts", "second starts"]
        assert asyncio.get_running_loop().time() >= 2
        if cancelled:
            task.cancel()
            await asyncio.wait((task,))
    assert events[2:] == ["second ends", "first ends"]
    assert task.cancelled() is cancelled


async def test_a_failed_start_stops_the_earlier_controllers_and_skips_the_later_ones() -> None:
    events: list[str] = []
    operator = Operator([First(events), Failing(events), Second(events)], nats=MemoryStores())
    async with running(operator) as task:
        with pytest.raises(HandlerError, match=r"start\(\) failed: RuntimeError: cannot start"):
            await task
    assert events == ["first starts", "failing ends", "first ends"]


async def test_a_controller_that_ends_stops_all_controllers() -> None:
    events: list[str] = []
    stores = MemoryStores()
    await stores.store(GivingUp.apps.kind).create("a", b"{}")
    async with running(Operator([First(events), GivingUp(events)], nats=stores)) as task:
        with pytest.raises(NatsctlError, match="givingup ended"):
            await task
    assert events[-1] == "first ends"


async def test_a_stop_waits_for_running_syncs_up_to_the_timeout() -> None:
    for stop_timeout_s, finished in ((60, True), (10, False)):
        events: list[str] = []
        stores = MemoryStores()
        await stores.store(Slow.apps.kind).create("a", b"{}")
        settings = ControllerSettings(stop_timeout_s=stop_timeout_s)
        operator = Operator([Slow(events)], nats=stores, settings=settings)
        async with running(operator):
            await asyncio.sleep(1)
            stopped_at = asyncio.get_running_loop().time()
        assert ("slow is done" in events) is finished
        assert asyncio.get_running_loop().time() - stopped_at <= stop_timeout_s
        assert events[-1] == "slow ends"


async def test_no_controllers_wrong_names_and_a_missing_store_are_rejected() -> None:
    with pytest.raises(UsageError, match="no controller"):
        await Operator([], nats=MemoryStores()).run()
    with pytest.raises(UsageError, match="two controllers are named first"):
        Operator([First([]), First([])], nats=MemoryStores())
    with pytest.raises(UsageError, match="first has its primary in NATS"):
        Operator([First([])])
    with pytest.raises(UsageError, match="no controller named 'typo'"):
        Operator().leads("typo")
    controller = First([])
    for name in ("my shops", "shops.eu", "küche", "a>", "a\nb"):
        controller.name = name
        with pytest.raises(UsageError, match=r"cannot name a controller.* set a `name` of ASCII"):
            Operator([controller], nats=MemoryStores())


class OtherRunnable:
    """A runnable that is no Controller."""

    def __init__(self, events: list[str]) -> None:
        self.name = "guest"
        self.workers = 1
        self.kinds: list[Kind[Any]] = []
        self.synced = asyncio.Event()
        self.nats: Stores | None = None
        self.kube: ManifestStores | None = None
        self._events = events
        self._stopping = asyncio.Event()

    def use(self, *, nats: Stores | None = None, kube: ManifestStores | None = None) -> None:
        self.nats, self.kube = nats, kube

    async def run(self) -> None:
        self._events.append("guest starts")
        self.synced.set()
        await self._stopping.wait()
        await asyncio.sleep(5)
        self._events.append("guest ends")

    def stop(self) -> None:
        self._stopping.set()


async def test_other_runnables_receive_stores_and_settings_and_are_awaited() -> None:
    events: list[str] = []
    stores, guest = MemoryStores(), OtherRunnable(events)
    operator = Operator(
        [First(events)], nats=stores, settings=ControllerSettings(workers=9, resync_s=5)
    )
    operator.add_controller(guest)
    async with running(operator) as task:
        assert guest.nats is not None
        store = await guest.nats.open(Second.apps.kind)
        await store.create("a", b"{}")
        assert (guest.kube, guest.workers) == (None, 9)
        assert (await stores.store(Second.apps.kind).get("a")).value == b"{}"
        assert not hasattr(guest, "resync_s")
    assert events == ["first starts", "guest starts", "guest ends", "first ends"]
    assert task.result() is None


async def test_a_runnable_keeps_its_stores_if_the_operator_has_none() -> None:
    guest = OtherRunnable([])
    guest.nats = stores = MemoryStores()
    operator = Operator([guest])
    async with running(operator):
        assert guest.nats is stores
