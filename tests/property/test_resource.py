"""Property tests of resource streams: every subscriber ends with the newest objects."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from natsctl import NotFoundError, StoreTimeoutError
from natsctl.resource import Event, EventKind, EventStream, Resource
from natsctl.testing import VirtualTimeLoop
from tests.support.controllers.app_controller import SlowStores, put
from tests.support.stores.sample_objects import THINGS, Thing, value

KEYS = st.sampled_from(["a", "b.c"])
SUBSCRIBER = st.integers(0, 1)

CHANGES = st.one_of(
    st.tuples(st.just("put"), KEYS),
    st.tuples(st.just("make"), KEYS, st.booleans()),
    st.tuples(st.just("spoil"), KEYS),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("lose"), KEYS),
)
TROUBLE = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.001, 0.05, 1.0, 40.0])),
    st.tuples(st.just("break"), st.sampled_from([None, 0, 1, 3])),
    st.tuples(st.just("lag"), st.sampled_from([0.0, 0.02, 2.0])),
    st.tuples(st.just("refuse"), st.booleans()),
    st.just(("recreate the bucket",)),
)
INTERRUPTIONS = st.one_of(
    st.tuples(st.just("fail"), SUBSCRIBER, st.integers(1, 3)),
    st.tuples(st.just("cancel"), SUBSCRIBER),
    st.tuples(st.just("leave"), SUBSCRIBER),
    st.just(("restart",)),
)
AT_ONCE = st.one_of(
    st.tuples(st.just("unseen"), CHANGES),
    st.tuples(st.just("failing"), CHANGES),
)
STEPS = st.lists(st.one_of(CHANGES, AT_ONCE, TROUBLE, INTERRUPTIONS), min_size=5, max_size=30)


class Subscriber:
    """Handles the events of a stream in two tasks, and checks the order of the events.

    The text of an object is the number of its write, so that older states are recognized.
    """

    def __init__(self, events: EventStream[Thing]) -> None:
        self.handled: dict[str, Thing] = {}
        self.syncs = 0
        self.failures = 0  # how many of the next events fail
        self._events = events
        self._delivered: dict[str, Thing] = {}
        self._numbers: Counter[str] = Counter()
        self._unfinished: set[str] = set()
        self._readers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._readers = [asyncio.create_task(self._read()) for _ in range(2)]

    async def cancel(self) -> None:
        for reader in self._readers:
            reader.cancel()
        for ended in await asyncio.gather(*self._readers, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended
        assert not self._unfinished

    async def _read(self) -> None:
        async for event in self._events:
            assert event.key not in self._unfinished
            self._unfinished.add(event.key)
            self._check(event)
            try:
                async with event:
                    await asyncio.sleep(0.01)
                    if self.failures:
                        self.failures -= 1
                        raise RuntimeError("on purpose")
                    self._handle(event)
            finally:
                self._unfinished.remove(event.key)

    def _check(self, event: Event[Thing]) -> None:
        last = self._delivered.get(event.key)
        match event.kind:
            case EventKind.UPSERT:
                number = int(event.object.spec.text)
                assert number >= self._numbers[event.key]  # in order
                uids = {obj.metadata.uid for obj in (last, event.object) if obj is not None}
                assert len(uids - {""}) <= 1  # the previous object had a delete event
                self._numbers[event.key], self._delivered[event.key] = number, event.object
            case EventKind.DELETE:
                assert event.object == last  # the subscriber got an upsert of this state

    def _handle(self, event: Event[Thing]) -> None:
        match event.kind:
            case EventKind.SYNC:
                self.syncs += 1
            case EventKind.UPSERT:
                self.handled[event.key] = event.object
            case EventKind.DELETE:
                self.handled.pop(event.key, None)
                del self._delivered[event.key]


class Model:
    """A store, a resource with two subscribers, and a model of the objects."""

    def __init__(self) -> None:
        self.stores = SlowStores()
        self.store = self.stores.store(THINGS)
        self.things: dict[str, tuple[str, str]] = {}  # text and uid
        self.spoiled: set[str] = set()
        self.writes = 0
        self.lifetime = AsyncExitStack()
        self.streams: list[AsyncExitStack] = []
        self.subscribers: list[Subscriber] = []

    async def step(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("wait", float(seconds)):
                await asyncio.sleep(seconds)
            case ("break" | "lag" | "refuse" | "recreate the bucket", *_):
                self.trouble(step)
            case ("fail", int(number), int(times)):
                self.subscribers[number].failures = times
            case ("unseen", change):
                self.store.cut()
                await self.change(change)
            case ("failing", change):
                await asyncio.sleep(1)
                for subscriber in self.subscribers:
                    subscriber.failures = 1
                await self.change(change)
            case ("cancel", int(number)):
                await self.subscribers[number].cancel()
                self.subscribers[number].start()
            case ("leave", int(number)):
                await self.streams[number].aclose()
                await self.subscribe(number)
            case ("restart",):
                await self.stop()
                await self.start()
            case _:
                await self.change(step)

    async def change(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("put", str(key)):
                await self.put(key, self.things[key][1] if key in self.things else "")
            case ("make", str(key), bool(has_uid)):
                if key in self.things:
                    await self.delete(key)
                await self.put(key, f"uid-{self.writes}" if has_uid else "")
            case ("spoil", str(key)) if key in self.things:
                await put(self.store, key, b"oops")
                self.spoiled.add(key)
            case ("delete", str(key)) if key in self.things:
                await self.delete(key)
            case ("lose", str(key)) if key in self.things:
                self.store.vanish(key)
                self.forget(key)

    async def put(self, key: str, uid: str) -> None:
        self.writes += 1
        text = str(self.writes)
        await put(self.store, key, value(text, uid=uid))
        self.things[key] = (text, uid)
        self.spoiled.discard(key)

    async def delete(self, key: str) -> None:
        await self.store.delete(key)
        self.forget(key)

    def forget(self, key: str) -> None:
        del self.things[key]
        self.spoiled.discard(key)

    def trouble(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("break", breaks_after):
                self.store.breaks_after = breaks_after
                self.store.cut()
            case ("lag", float(seconds)):
                self.store.lag_s = seconds
            case ("refuse", bool(refuses)):
                self.store.fail(StoreTimeoutError("on purpose") if refuses else None)
            case ("recreate the bucket",):
                self.store.recreate()
                self.things.clear()
                self.spoiled.clear()

    async def start(self) -> None:
        self.resource = await self.lifetime.enter_async_context(Resource(THINGS, self.stores))
        self.streams = [AsyncExitStack(), AsyncExitStack()]
        self.subscribers = [await self.subscribe(number) for number in range(2)]

    async def subscribe(self, number: int) -> Subscriber:
        stream = self.streams[number]
        events = await stream.enter_async_context(self.resource.events())
        subscriber = Subscriber(events)
        subscriber.start()
        stream.push_async_callback(subscriber.cancel)
        if self.subscribers:
            self.subscribers[number] = subscriber
        return subscriber

    async def stop(self) -> None:
        for stream in self.streams:
            await stream.aclose()
        await self.lifetime.aclose()
        self.subscribers = []
        assert self.store.watches == 0
        assert len(asyncio.all_tasks()) == 1

    async def settle(self) -> None:
        """End all disturbances, and wait until every event is handled."""
        self.store.lag_s, self.store.breaks_after = 0.0, None
        self.store.fail(None)
        for key in list(self.spoiled):
            await self.put(key, self.things[key][1])
        self.store.break_watches()  # the relist finds the lost keys
        await asyncio.sleep(300)


async def run_steps(steps: list[tuple[Any, ...]]) -> None:
    model = Model()
    await model.start()
    for step in steps:
        with suppress(StoreTimeoutError, NotFoundError):  # the store refuses by a step
            await model.step(step)
    await model.settle()
    handled = [
        {key: (obj.spec.text, obj.metadata.uid) for key, obj in subscriber.handled.items()}
        for subscriber in model.subscribers
    ]
    assert handled == [model.things] * 2
    assert [subscriber.syncs for subscriber in model.subscribers] == [1, 1]
    await model.stop()


@given(STEPS)
def test_every_subscriber_handles_the_newest_state_of_every_object_in_order(
    steps: list[tuple[Any, ...]],
) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run_steps(steps))
